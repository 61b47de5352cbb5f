//! What a consumer group needs to be told, and what is refused before anything is started.

use std::time::Duration;

use crate::client::{Client, check_name_servers};
use crate::wire::properties::is_plain;
use crate::{Error, KeyFrom};

/// The longest names that brokers take.
const TOPIC_MAX: usize = 127;
pub(crate) const GROUP_MAX: usize = 120;

/// A member of a consumer group: where, which group, what it reads.
///
/// Checked by [`RocketMqSource::new`](crate::RocketMqSource::new), before a thread or a connection
/// exists.
///
/// ```
/// use keylane_rocketmq::{Config, KeyFrom, RocketMqSource};
///
/// let config = Config::new(["127.0.0.1:9876"], "billing")
///     .subscribe("orders", "*")
///     .key(KeyFrom::FirstKey);
/// assert!(RocketMqSource::new(config).is_ok());
///
/// let error = RocketMqSource::new(Config::new(["127.0.0.1:9876"], "billing")).unwrap_err();
/// assert_eq!(error.to_string(), "subscribe: no topic; at least one is needed");
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) name_servers: Vec<String>,
    pub(crate) group: String,
    pub(crate) subscriptions: Vec<(String, String)>,
    pub(crate) retries: bool,
    pub(crate) key: KeyFrom,
    pub(crate) client_id: Option<String>,
    pub(crate) pull_messages: usize,
    pub(crate) pull_bytes: usize,
    pub(crate) hold: Duration,
    pub(crate) check_every: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) heartbeat_every: Duration,
    pub(crate) rebalance_every: Duration,
    pub(crate) route_every: Duration,
    pub(crate) lock_lease: Duration,
}

impl Config {
    /// A member of `group`, that finds its brokers through these name servers (`host:port`).
    pub fn new<S: Into<String>>(
        name_servers: impl IntoIterator<Item = S>,
        group: impl Into<String>,
    ) -> Self {
        Self {
            name_servers: name_servers.into_iter().map(Into::into).collect(),
            group: group.into(),
            subscriptions: Vec::new(),
            retries: true,
            key: KeyFrom::default(),
            client_id: None,
            pull_messages: 1_024,
            pull_bytes: 256 * 1024,
            hold: Duration::from_secs(1),
            check_every: Duration::from_millis(900),
            call_timeout: Client::TIMEOUT,
            heartbeat_every: Duration::from_secs(30),
            rebalance_every: Duration::from_secs(20),
            route_every: Duration::from_secs(30),
            lock_lease: Duration::from_secs(30),
        }
    }

    /// Reads a topic: all of it (`"*"`), or the messages with one of these tags (`"a || b"`).
    ///
    /// All members of a group must subscribe to the same: a broker keeps one subscription a group,
    /// the last one that it heard of. A mismatch is reported by the source's `poll`.
    #[must_use]
    pub fn subscribe(mut self, topic: impl Into<String>, expression: impl Into<String>) -> Self {
        self.subscriptions.push((topic.into(), expression.into()));
        self
    }

    /// Whether the group's retry topic (`%RETRY%group`) is read, too, as Java's consumers do.
    /// Default: yes.
    #[must_use]
    pub fn retries(mut self, read: bool) -> Self {
        self.retries = read;
        self
    }

    /// Where the key of a message comes from. Default: [`KeyFrom::ShardingKeyOrKeys`].
    #[must_use]
    pub fn key(mut self, key: KeyFrom) -> Self {
        self.key = key;
        self
    }

    /// The name of this member. Default: one that no other member has, in this process or another.
    ///
    /// Two members of one name read the same queues and share each other's locks: set it only where
    /// something else makes it unique.
    #[must_use]
    pub fn client_id(mut self, client_id: impl Into<String>) -> Self {
        self.client_id = Some(client_id.into());
        self
    }

    /// How many messages one pull may bring, 1 to 32,767. Default 1,024; a broker has a limit of its
    /// own (`maxTransferCountOnMessageInMemory`, 32 unless set).
    #[must_use]
    pub fn pull_messages(mut self, messages: usize) -> Self {
        self.pull_messages = messages;
        self
    }

    /// How many bytes one pull may bring, 1 KiB to 8 MiB. Default 256 KiB; brokers before 5.0 know
    /// their own limit only.
    #[must_use]
    pub fn pull_bytes(mut self, bytes: usize) -> Self {
        self.pull_bytes = bytes;
        self
    }

    /// How long a broker may hold back the answer to a pull while there is nothing to send, 100 ms
    /// to 60 s. Default 1 s. A message that arrives ends it at once; an offset that an operator moves
    /// does not: see [`check_every`](Self::check_every).
    ///
    /// Brokers look at the pulls that they hold every 5 s, so that a shorter time lasts up to 5 s,
    /// and a longer one up to 5 s more.
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// How long a queue may be without news from its broker before it is asked whether somebody has
    /// moved the group's offset, 50 ms to 10 min. Default 900 ms, so that an operator's reset is
    /// followed within a second, also where the queue is paused or its pull is held. It costs one
    /// small request for each queue that is idle.
    #[must_use]
    pub fn check_every(mut self, interval: Duration) -> Self {
        self.check_every = interval;
        self
    }

    /// How long a call other than a pull waits for its answer, 50 ms to 60 s. Default 5 s.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// How often the brokers are told that this member is alive, 50 ms to 60 s. Default 30 s; a
    /// broker gives a member up after 120 s of silence.
    #[must_use]
    pub fn heartbeat_every(mut self, interval: Duration) -> Self {
        self.heartbeat_every = interval;
        self
    }

    /// How often the members are asked for anew, 50 ms to 10 min. Default 20 s; a broker's
    /// notification of a change comes on top of it, at once.
    #[must_use]
    pub fn rebalance_every(mut self, interval: Duration) -> Self {
        self.rebalance_every = interval;
        self
    }

    /// How often the routes of topics are asked for anew, 50 ms to 10 min. Default 30 s.
    #[must_use]
    pub fn route_every(mut self, interval: Duration) -> Self {
        self.route_every = interval;
        self
    }

    /// For how long a queue's lock is trusted after it was asked for, 100 ms to 10 min. Default
    /// 30 s. It must be shorter than the broker's own expiry, 60 s unless the broker is set
    /// otherwise (`rocketmq.broker.rebalance.lockMaxLiveTime`).
    #[must_use]
    pub fn lock_lease(mut self, lease: Duration) -> Self {
        self.lock_lease = lease;
        self
    }

    /// Sets an option by the name that the Java client has for it, as from a properties file.
    ///
    /// # Errors
    ///
    /// The value is not what the option takes, or the option is not known; TLS and access control
    /// are known and refused, as they are not supported yet.
    ///
    /// ```
    /// use keylane_rocketmq::Config;
    ///
    /// let config = Config::new(["127.0.0.1:9876"], "billing").set("pullBatchSize", "64").unwrap();
    /// let error = config.set("useTLS", "true").unwrap_err();
    /// assert_eq!(error.to_string(), "option useTLS: TLS is not supported yet");
    /// ```
    pub fn set(self, name: &str, value: &str) -> Result<Self, Error> {
        let number = || {
            value.trim().parse::<u32>().map_err(|_| {
                Error::configuration(format!("option {name}: {value:?} is not a number from 0 up"))
            })
        };
        let ms = || number().map(|ms| Duration::from_millis(ms.into()));
        let refused = |what: &str| {
            Err(Error::configuration(format!("option {name}: {what} is not supported yet")))
        };
        match name {
            "namesrvAddr" => {
                let name_servers = value.split(';').map(|server| server.trim().to_owned());
                Ok(Self { name_servers: name_servers.collect(), ..self })
            }
            "consumerGroup" => Ok(Self { group: value.to_owned(), ..self }),
            "pullBatchSize" => Ok(self.pull_messages(number()? as usize)),
            "pullBatchSizeInBytes" => Ok(self.pull_bytes(number()? as usize)),
            "heartbeatBrokerInterval" => Ok(self.heartbeat_every(ms()?)),
            "pollNameServerInterval" => Ok(self.route_every(ms()?)),
            "mqClientApiTimeout" => Ok(self.call_timeout(ms()?)),
            "brokerSuspendMaxTimeMillis" => Ok(self.hold(ms()?)),
            "useTLS" | "tlsEnable" if value.trim() == "false" => Ok(self),
            "useTLS" | "tlsEnable" => refused("TLS"),
            _ if name.starts_with("tls.") => refused("TLS"),
            "accessKey" | "secretKey" | "securityToken" | "aclEnable" | "rpcHook" => {
                refused("access control (ACL)")
            }
            _ => Err(Error::configuration(format!(
                "option {name} is not known; known are namesrvAddr, consumerGroup, pullBatchSize, \
                 pullBatchSizeInBytes, heartbeatBrokerInterval, pollNameServerInterval, \
                 mqClientApiTimeout, brokerSuspendMaxTimeMillis"
            ))),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_name_servers(&self.name_servers)?;
        check_name("group", &self.group, GROUP_MAX)?;
        if self.subscriptions.is_empty() {
            return Err(Error::configuration("subscribe: no topic; at least one is needed"));
        }
        for (index, (topic, expression)) in self.subscriptions.iter().enumerate() {
            check_name("topic", topic, TOPIC_MAX)?;
            if self.subscriptions[..index].iter().any(|(known, _)| known == topic) {
                let error = format!("subscribe: topic {topic:?} is there twice");
                return Err(Error::configuration(error));
            }
            if expression.trim() != "*" && tags(expression).is_empty() {
                return Err(Error::configuration(format!(
                    "subscribe: {expression:?} for topic {topic:?} is neither \"*\" nor tags as in \
                     \"a || b\""
                )));
            }
        }
        if self.client_id.as_deref().is_some_and(|id| id.is_empty() || !is_plain(id)) {
            return Err(Error::configuration("client_id: empty, or with control characters"));
        }
        within("pull_messages", self.pull_messages, 1, 32_767)?;
        within("pull_bytes", self.pull_bytes, 1024, 8 * 1024 * 1024)?;
        let (ms, seconds) = (Duration::from_millis, Duration::from_secs);
        within("hold", self.hold, ms(100), seconds(60))?;
        within("check_every", self.check_every, ms(50), seconds(600))?;
        within("call_timeout", self.call_timeout, ms(50), seconds(60))?;
        within("heartbeat_every", self.heartbeat_every, ms(50), seconds(60))?;
        within("rebalance_every", self.rebalance_every, ms(50), seconds(600))?;
        within("route_every", self.route_every, ms(50), seconds(600))?;
        within("lock_lease", self.lock_lease, ms(100), seconds(600))
    }

    pub(crate) fn retry_topic(&self) -> String {
        retry_topic(&self.group)
    }
}

/// Where a group's messages go that are to be tried again, or to be given up.
pub(crate) fn retry_topic(group: &str) -> String {
    format!("%RETRY%{group}")
}

/// The tags of a subscription; none: all messages.
pub(crate) fn tags(expression: &str) -> Vec<String> {
    let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty() && *tag != "*");
    tags.map(str::to_owned).collect()
}

pub(crate) fn check_name(what: &str, name: &str, longest: usize) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"%|-_".contains(&byte);
    if name.is_empty() || name.len() > longest || !name.bytes().all(allowed) {
        return Err(Error::configuration(format!(
            "{what} {name:?}: 1 to {longest} letters, digits or any of % | - _ are allowed"
        )));
    }
    Ok(())
}

fn within<T: PartialOrd + std::fmt::Debug>(
    option: &str,
    value: T,
    min: T,
    max: T,
) -> Result<(), Error> {
    if value < min || value > max {
        let error = format!("{option}: {value:?} is not within {min:?} to {max:?}");
        return Err(Error::configuration(error));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::new(["127.0.0.1:9876"], "g").subscribe("t", "*")
    }

    fn rejected(config: Config) -> String {
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_work_is_rejected_by_name() {
        assert_eq!(config().validate(), Ok(()));
        let servers = |list: &[&str]| Config::new(list.to_vec(), "g").subscribe("t", "*");
        assert_eq!(rejected(servers(&[])), "no name server: at least one host:port is needed");
        for bad in ["host", ":1", "host:0", "host:65536", "host:x"] {
            assert!(rejected(servers(&[bad])).starts_with(&format!("name server {bad:?}")));
        }
        let allowed = "letters, digits or any of % | - _ are allowed";
        let group = Config::new(["h:1"], "a b").subscribe("t", "*");
        assert_eq!(rejected(group), format!("group \"a b\": 1 to 120 {allowed}"));
        assert_eq!(
            rejected(config().subscribe("", "*")),
            format!("topic \"\": 1 to 127 {allowed}")
        );
        assert_eq!(rejected(config().subscribe("t", "a")), "subscribe: topic \"t\" is there twice");
        assert_eq!(
            rejected(config().subscribe("u", " || ")),
            "subscribe: \" || \" for topic \"u\" is neither \"*\" nor tags as in \"a || b\""
        );
        assert_eq!(
            rejected(config().client_id("")),
            "client_id: empty, or with control characters"
        );
    }

    #[test]
    fn numbers_outside_their_range_are_rejected_with_it() {
        assert_eq!(
            rejected(config().pull_messages(0)),
            "pull_messages: 0 is not within 1 to 32767"
        );
        assert_eq!(rejected(config().pull_bytes(1)), "pull_bytes: 1 is not within 1024 to 8388608");
        let zero = Duration::ZERO;
        assert_eq!(rejected(config().hold(zero)), "hold: 0ns is not within 100ms to 60s");
        assert_eq!(
            rejected(config().call_timeout(zero)),
            "call_timeout: 0ns is not within 50ms to 60s"
        );
        assert_eq!(
            rejected(config().heartbeat_every(Duration::from_secs(61))),
            "heartbeat_every: 61s is not within 50ms to 60s"
        );
        assert!(rejected(config().check_every(zero)).starts_with("check_every: "));
        assert!(rejected(config().rebalance_every(zero)).starts_with("rebalance_every: "));
        assert!(rejected(config().route_every(zero)).starts_with("route_every: "));
        assert!(rejected(config().lock_lease(zero)).starts_with("lock_lease: "));
    }

    #[test]
    fn options_by_name() {
        let set = config()
            .set("namesrvAddr", "a:1; b:2")
            .and_then(|config| config.set("consumerGroup", "h"))
            .and_then(|config| config.set("pullBatchSize", "7"))
            .and_then(|config| config.set("heartbeatBrokerInterval", "1000"))
            .and_then(|config| config.set("useTLS", "false"))
            .unwrap();
        assert_eq!(set.name_servers, ["a:1", "b:2"]);
        assert_eq!((&set.group[..], set.pull_messages), ("h", 7));
        assert_eq!(set.heartbeat_every, Duration::from_secs(1));
        let error = |name, value| config().set(name, value).unwrap_err().to_string();
        assert_eq!(
            error("tls.client.keyPath", "k"),
            "option tls.client.keyPath: TLS is not supported yet"
        );
        assert_eq!(
            error("accessKey", "a"),
            "option accessKey: access control (ACL) is not supported yet"
        );
        assert_eq!(
            error("pullBatchSize", "-1"),
            "option pullBatchSize: \"-1\" is not a number from 0 up"
        );
        assert!(
            error("pullBatchSzie", "1").starts_with("option pullBatchSzie is not known; known")
        );
    }

    #[test]
    fn tags_of_an_expression() {
        assert_eq!(tags("a || b||c "), ["a", "b", "c"]);
        assert!(tags("*").is_empty());
    }
}
