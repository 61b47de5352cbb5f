//! The options of a source: what is asked for, checked before a thread or a connection exists.
//!
//! Any property of librdkafka can be set; the table `OWNED` lists the few that are ours, each with
//! the reason that the user reads when it is set all the same.

use std::time::Duration;

use rdkafka::ClientConfig;

use crate::properties::{Properties, check_no_nul};
use crate::{Error, KafkaSource};

/// Properties of a consumer that are not the user's to set, and why.
pub(crate) const OWNED: &[(&str, &str)] = &[
    ("bootstrap.servers", SERVERS),
    ("metadata.broker.list", SERVERS),
    ("group.id", "the group is the second argument of KafkaSource::builder"),
    ("enable.auto.commit", COMMITS),
    ("auto.commit.enable", COMMITS),
    ("auto.commit.interval.ms", COMMITS),
    ("enable.auto.offset.store", COMMITS),
    ("offset.store.method", COMMITS),
    (
        "auto.offset.reset",
        "where a queue starts without a commit, or outside its range, is the \
      engine's start option",
    ),
    ("enable.partition.eof", "ends of partitions are what lets a commit pass trailing holes"),
    ("log.queue", "librdkafka's log goes to the `log` crate"),
    ("statistics.interval.ms", "nobody reads librdkafka's statistics here"),
];

const SERVERS: &str = "the servers are the first argument of the builder";
const COMMITS: &str = "only finished watermarks are committed, and the engine decides when";

/// Properties that differ from librdkafka's defaults, unless the user sets them.
const DEFAULTS: &[(&str, &str)] = &[
    ("client.id", "keylane"),
    // At librdkafka's 1 s a consumer that keeps up with its queue loses half of its rate and more.
    ("fetch.queue.backoff.ms", "10"),
    // librdkafka has one fetch under way per broker. One that waits at the end of a partition holds
    // up those whose back-off ends meanwhile, for as long as this.
    ("fetch.wait.max.ms", "100"),
    // Of fetched messages, for the queues being read together and for each paused one.
    ("queued.max.messages.kbytes", "16384"),
];

/// The settings that always hold.
pub(crate) const FIXED: &[(&str, &str)] = &[
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "error"),
    ("enable.partition.eof", "true"),
    ("log.queue", "true"),
];

/// Which partitions a source reads.
#[derive(Debug, Clone)]
pub(crate) enum Topics {
    /// The group shares out the partitions of these topics (patterns begin with `^`).
    Subscribe(Vec<String>),
    /// Exactly these partitions, without group membership.
    Assign(Vec<(String, u32)>),
}

/// Builds a [`KafkaSource`].
#[derive(Debug, Clone)]
pub struct KafkaSourceBuilder {
    servers: String,
    group: String,
    topics: Vec<Topics>,
    properties: Properties,
    headers: bool,
    revoke_bound: Option<Duration>,
}

/// What the source needs beside librdkafka's configuration.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) group: String,
    pub(crate) topics: Topics,
    pub(crate) headers: bool,
    pub(crate) revoke_bound: Duration,
    /// How long `poll` may sleep without telling librdkafka that it is alive.
    pub(crate) park_max: Duration,
    pub(crate) read_committed: bool,
}

impl KafkaSourceBuilder {
    pub(crate) fn new(servers: String, group: String) -> Self {
        let (topics, properties) = (Vec::new(), Properties::default());
        Self { servers, group, topics, properties, headers: true, revoke_bound: None }
    }

    /// Joins the group and reads the partitions that it gives to this member, of these topics.
    ///
    /// Partitions that are added to a topic later are found at the next refresh of metadata
    /// (`topic.metadata.refresh.interval.ms`, default 5 minutes).
    #[must_use]
    pub fn subscribe<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.topics.push(Topics::Subscribe(topics.into_iter().map(Into::into).collect()));
        self
    }

    /// As [`subscribe`](Self::subscribe), with every topic whose whole name matches the regular
    /// expression. It must begin with `^`, which is how librdkafka tells a pattern from a name.
    #[must_use]
    pub fn subscribe_pattern(mut self, pattern: impl Into<String>) -> Self {
        self.topics.push(Topics::Subscribe(vec![pattern.into()]));
        self
    }

    /// Reads exactly these partitions (topic, partition), without joining the group: it is used for
    /// commits only, and nothing is ever revoked.
    #[must_use]
    pub fn assign<T: Into<String>>(
        mut self,
        partitions: impl IntoIterator<Item = (T, u32)>,
    ) -> Self {
        let all = partitions.into_iter().map(|(topic, partition)| (topic.into(), partition));
        self.topics.push(Topics::Assign(all.collect()));
        self
    }

    /// Sets a property of librdkafka (see its CONFIGURATION.md). The last value of a name wins.
    ///
    /// Different from librdkafka's own defaults: `fetch.queue.backoff.ms` 10 (at 1000 the rate
    /// falls two to seven times once the fetch queue has been full), `fetch.wait.max.ms` 100 (a
    /// fetch that waits at the end of one partition holds up the others of its broker) and
    /// `queued.max.messages.kbytes` 16384 (what may be fetched ahead, for the queues being read
    /// together and for each paused one).
    /// Worth knowing: `isolation.level` is `read_committed`, `check.crcs` is `false`.
    ///
    /// # Errors
    ///
    /// [`build`](Self::build) rejects properties that librdkafka does not know, the few that this
    /// crate must own (commits, offset reset, ends of partitions, statistics), under whatever name,
    /// and a property that is set by two of its names.
    #[must_use]
    pub fn set(mut self, property: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.set(property.into(), value.into());
        self
    }

    /// How long a revoke waits for the engine to finish and commit what runs, before the queue is
    /// given up as lost. It must lie below `max.poll.interval.ms` and (classic protocol) below
    /// `session.timeout.ms`. Default: half of the smaller of them, at most 10 s.
    ///
    /// Meanwhile librdkafka fetches nothing, for queues that stay either: the engine goes on with
    /// what it has of them, and gets more when the last taken queue has been released.
    #[must_use]
    pub fn revoke_bound(mut self, bound: Duration) -> Self {
        self.revoke_bound = Some(bound);
        self
    }

    /// Whether the headers of messages are read. Default: they are.
    ///
    /// librdkafka takes a message's headers apart when they are first asked for, in memory that it
    /// allocates for that, also where there are none. Without them a small message costs 5 to 21 %
    /// less CPU (`docs/performance.md`); then [`Message::headers`](keylane_source::Message::headers)
    /// is empty, and a dead letter has none of the message's headers.
    #[must_use]
    pub fn headers(mut self, read: bool) -> Self {
        self.headers = read;
        self
    }

    /// Checks everything, then creates the client. The group is joined by the first polls.
    ///
    /// # Errors
    ///
    /// Names the property or argument, its value and what is allowed.
    pub fn build(self) -> Result<KafkaSource, Error> {
        let options = self.options()?;
        let opened = KafkaSource::open(&self.client_config(), options);
        opened.map_err(|error| self.properties.name_files(error))
    }

    pub(crate) fn options(&self) -> Result<Options, Error> {
        check_servers(&self.servers)?;
        if self.group.is_empty() {
            return Err(Error::new("the group is empty: commits need a group.id"));
        }
        check_no_nul("the group", &self.group)?;
        self.properties.check(OWNED)?;
        Ok(Options {
            group: self.group.clone(),
            topics: self.topics()?,
            headers: self.headers,
            revoke_bound: self.checked_revoke_bound()?,
            park_max: (self.limit("max.poll.interval.ms", 300_000)? / 4)
                .min(Duration::from_secs(1)),
            read_committed: !self.has("isolation.level", "read_uncommitted"),
        })
    }

    fn topics(&self) -> Result<Topics, Error> {
        let topics = match &self.topics[..] {
            [] => return Err(Error::new("nothing to read: call subscribe or assign")),
            [one] => one.clone(),
            all => merge_subscriptions(all)?,
        };
        match &topics {
            Topics::Subscribe(names) if !names.is_empty() => {
                names.iter().try_for_each(|name| check_topic(name))?;
            }
            Topics::Assign(partitions) if !partitions.is_empty() => {
                for (topic, partition) in partitions {
                    check_topic(topic)?;
                    if i32::try_from(*partition).is_err() {
                        let text =
                            format!("partition {partition} of {topic}: allowed is 0..=2^31-1");
                        return Err(Error::new(text));
                    }
                }
            }
            _ => return Err(Error::new("nothing to read: the list of topics is empty")),
        }
        Ok(topics)
    }

    fn checked_revoke_bound(&self) -> Result<Duration, Error> {
        let mut limit = ("max.poll.interval.ms", self.limit("max.poll.interval.ms", 300_000)?);
        if !self.has("group.protocol", "consumer") {
            let session = self.limit("session.timeout.ms", 45_000)?;
            if session < limit.1 {
                limit = ("session.timeout.ms", session);
            }
        }
        match self.revoke_bound {
            None => Ok((limit.1 / 2).min(Duration::from_secs(10))),
            Some(bound) if bound < limit.1 => Ok(bound),
            Some(bound) => Err(Error::new(format!(
                "revoke_bound is {bound:?}: it must lie below {}, which is {:?}",
                limit.0, limit.1
            ))),
        }
    }

    /// Whether a property has this value, whose case does not matter to librdkafka.
    fn has(&self, name: &str, value: &str) -> bool {
        self.properties.get(name).is_some_and(|set| set.eq_ignore_ascii_case(value))
    }

    /// librdkafka also takes octal and hexadecimal numbers, ignores what stands behind a number and
    /// cuts one to 32 bits.
    fn limit(&self, name: &str, default_ms: u64) -> Result<Duration, Error> {
        let Some(value) = self.properties.get(name) else {
            return Ok(Duration::from_millis(default_ms));
        };
        match value.parse::<u32>() {
            Ok(ms @ 1..=0x7fff_ffff) if value.starts_with(|digit| digit != '0' && digit != '+') => {
                Ok(Duration::from_millis(ms.into()))
            }
            _ => Err(Error::new(format!(
                "{name} is {value:?}: allowed are milliseconds, 1 to 2147483647"
            ))),
        }
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = self.properties.config(DEFAULTS, FIXED);
        config.set("bootstrap.servers", &self.servers).set("group.id", &self.group);
        config
    }
}

fn merge_subscriptions(all: &[Topics]) -> Result<Topics, Error> {
    let mut names = Vec::new();
    for topics in all {
        match topics {
            Topics::Subscribe(more) => names.extend(more.iter().cloned()),
            _ => {
                return Err(Error::new(
                    "subscribe and assign exclude each other, and assign is called once",
                ));
            }
        }
    }
    Ok(Topics::Subscribe(names))
}

fn check_topic(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::new("a topic's name is empty"));
    }
    check_no_nul("a topic's name", name)
}

pub(crate) fn check_servers(servers: &str) -> Result<(), Error> {
    if servers.is_empty() {
        return Err(Error::new(
            "the list of servers is empty: host:port[,host:port...] is expected",
        ));
    }
    check_no_nul("the list of servers", servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> KafkaSourceBuilder {
        KafkaSource::builder("127.0.0.1:1", "g").subscribe(["t"])
    }

    fn rejected(builder: KafkaSourceBuilder) -> String {
        builder.options().unwrap_err().to_string()
    }

    #[test]
    fn every_owned_property_is_rejected_with_its_reason() {
        for (name, reason) in OWNED {
            let text = rejected(builder().set(*name, "1"));
            assert_eq!(text, format!("{name} cannot be set: {reason}"));
        }
    }

    #[test]
    fn something_to_read_is_needed_once() {
        let bare = || KafkaSource::builder("127.0.0.1:1", "g");
        assert_eq!(rejected(bare()), "nothing to read: call subscribe or assign");
        assert_eq!(
            rejected(bare().subscribe(Vec::<String>::new())),
            "nothing to read: the list of topics is empty"
        );
        assert_eq!(rejected(bare().subscribe(["a", ""])), "a topic's name is empty");
        assert_eq!(
            rejected(builder().assign([("t", 0)])),
            "subscribe and assign exclude each other, and assign is called once"
        );
        assert_eq!(
            rejected(bare().assign([("t", 1 << 31)])),
            "partition 2147483648 of t: allowed is 0..=2^31-1"
        );
        let Topics::Subscribe(names) =
            builder().subscribe_pattern("^u.*").options().unwrap().topics
        else {
            panic!("two subscriptions are one");
        };
        assert_eq!(names, ["t", "^u.*"]);
    }

    #[test]
    fn the_revoke_bound_lies_below_the_limits() {
        let bound = |b: KafkaSourceBuilder| b.options().map(|o| o.revoke_bound.as_millis());
        assert_eq!(bound(builder()), Ok(10_000));
        assert_eq!(bound(builder().set("session.timeout.ms", "6000")), Ok(3_000));
        assert_eq!(bound(builder().set("max.poll.interval.ms", "4000")), Ok(2_000));
        let second = Duration::from_secs(1);
        assert_eq!(bound(builder().revoke_bound(second)), Ok(1_000));
        assert_eq!(
            rejected(builder().revoke_bound(second).set("session.timeout.ms", "1000")),
            "revoke_bound is 1s: it must lie below session.timeout.ms, which is 1s"
        );
        assert_eq!(
            rejected(builder().set("session.timeout.ms", "soon")),
            "session.timeout.ms is \"soon\": allowed are milliseconds, 1 to 2147483647"
        );
        // KIP-848: the session belongs to the broker.
        let new = builder().set("group.protocol", "consumer").revoke_bound(50 * second);
        assert_eq!(bound(new), Ok(50_000));
    }

    #[test]
    fn zero_bytes_never_reach_c() {
        assert!(rejected(builder().set("client.id", "a\0b")).contains("zero byte"));
        assert!(rejected(builder().subscribe(["a\0b"])).contains("zero byte"));
        assert!(rejected(KafkaSource::builder("h\0", "g").subscribe(["t"])).contains("zero byte"));
        assert!(
            rejected(KafkaSource::builder("h:1", "g\0").subscribe(["t"])).contains("zero byte")
        );
    }

    #[test]
    fn an_unknown_property_is_rejected_by_name() {
        let text = builder().set("no.such.thing", "1").build().unwrap_err().to_string();
        assert!(text.contains("no.such.thing"), "{text}");
    }
}
