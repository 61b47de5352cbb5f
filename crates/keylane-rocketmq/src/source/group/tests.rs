use super::*;
use crate::wire::body::from_json;

const SECOND: Duration = Duration::from_secs(1);

fn group(retries: bool) -> (Group, Instant) {
    let now = Instant::now();
    let config = Config::new(["h:1"], "g").subscribe("t", "*").retries(retries);
    (Group::new(&config, "m1".to_owned(), now), now)
}

/// Two queues on each of these brokers, which are where their names say.
fn route(topic: &str, brokers: &[&str]) -> Result<Option<Route>, Error> {
    let queue = |b: &&str| {
        format!(r#"{{"brokerName":"{b}","readQueueNums":2,"writeQueueNums":2,"perm":6}}"#)
    };
    let broker = |b: &&str| format!(r#"{{"brokerName":"{b}","brokerAddrs":{{"0":"{b}:1"}}}}"#);
    let list =
        |each: &dyn Fn(&&str) -> String| brokers.iter().map(each).collect::<Vec<_>>().join(",");
    let json = format!(r#"{{"queueDatas":[{}],"brokerDatas":[{}]}}"#, list(&queue), list(&broker));
    Ok(Some(Route::new(topic, from_json(json.as_bytes()).unwrap())))
}

fn ask_route(topic: &str) -> Step {
    Step::AskRoute { topic: topic.to_owned() }
}

fn heartbeat(address: &str) -> Step {
    Step::Heartbeat { address: address.to_owned() }
}

fn ask_members(address: &str) -> [Step; 2] {
    let address = address.to_owned();
    [
        Step::AskSubscriptions { address: address.clone() },
        Step::AskMembers { topic: "t".to_owned(), address },
    ]
}

fn list(ids: &[&str]) -> Result<Vec<String>, Error> {
    Ok(ids.iter().map(|id| (*id).to_owned()).collect())
}

/// A member of a group on one broker, that has asked who the others are.
fn joined() -> (Group, Instant) {
    let (mut group, now) = group(false);
    assert_eq!(group.steps(now), [ask_route("t")]);
    group.route_came("t", route("t", &["a"]), now).unwrap();
    assert_eq!(group.steps(now), [heartbeat("a:1")]);
    assert!(group.heartbeat_came("a:1", true, now));
    assert_eq!(group.steps(now), ask_members("a:1"));
    (group, now)
}

fn indices(verdict: Verdict) -> Vec<u32> {
    match verdict {
        Verdict::Allocated(queues) => queues.into_iter().map(QueueId::index).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn route_then_heartbeat_then_members() {
    let (mut group, now) = joined();
    assert_eq!(indices(group.members_came("t", "a:1", list(&["m0", "m1"]), now)), [1]);
    assert_eq!(group.steps(now), []);
    assert_eq!(group.next_due(), Some(now + 20 * SECOND));
    let steps = group.steps(now + 30 * SECOND);
    let expected = [&[ask_route("t"), heartbeat("a:1")][..], &ask_members("a:1")[..]].concat();
    assert_eq!(steps, expected);
}

#[test]
fn without_a_broker_that_knows_this_member_nobody_is_asked() {
    let (mut group, now) = group(false);
    group.steps(now);
    group.route_came("t", route("t", &["a"]), now).unwrap();
    assert_eq!(group.steps(now), [heartbeat("a:1")]);
    assert_eq!(group.steps(now), []);
    assert_eq!(group.next_due(), Some(now + 30 * SECOND), "the route; nothing in the past");
    assert!(!group.heartbeat_came("a:1", false, now));
    assert_eq!(group.next_due(), Some(now + RETRY_FIRST));
}

#[test]
fn a_notification_while_the_answer_is_under_way_asks_again() {
    let (mut group, now) = joined();
    group.notified(now);
    assert_eq!(group.steps(now), [], "one question at a time");
    group.members_came("t", "a:1", list(&["m1"]), now);
    assert_eq!(group.steps(now), ask_members("a:1"));
}

#[test]
fn a_member_list_that_fails_changes_nothing_and_is_asked_for_again() {
    let (mut group, now) = joined();
    let failed = Err(Error::timeout("no answer"));
    assert_eq!(group.members_came("t", "a:1", failed, now), Verdict::Unclear);
    assert_eq!(group.steps(now), []);
    assert_eq!(group.steps(now + RETRY_FIRST), ask_members("a:1"));
}

#[test]
fn a_member_that_is_missing_tells_the_broker_before_it_believes_it() {
    let (mut group, now) = joined();
    assert_eq!(group.members_came("t", "a:1", list(&["m2"]), now), Verdict::Unclear);
    assert_eq!(group.steps(now + SECOND), [heartbeat("a:1")]);
    group.heartbeat_came("a:1", true, now + SECOND);
    assert_eq!(group.steps(now + SECOND), ask_members("a:1"));
    let again = group.members_came("t", "a:1", list(&["m2"]), now + SECOND);
    assert_eq!(again, Verdict::Expelled);
    // Listed in between, it starts anew.
    let (mut group, now) = joined();
    group.members_came("t", "a:1", list(&["m2"]), now);
    group.members_came("t", "a:1", list(&["m1"]), now);
    assert_eq!(group.members_came("t", "a:1", list(&["m2"]), now), Verdict::Unclear);
}

#[test]
fn brokers_are_asked_in_turn_and_only_those_that_know_this_member() {
    let (mut group, now) = group(false);
    group.steps(now);
    group.route_came("t", route("t", &["a", "b", "c"]), now).unwrap();
    group.steps(now);
    for address in ["a:1", "c:1"] {
        group.heartbeat_came(address, true, now);
    }
    let mut asked = Vec::new();
    for _ in 0..4 {
        let steps = group.steps(now);
        asked.extend(steps.into_iter().filter_map(|step| match step {
            Step::AskMembers { address, .. } => Some(address),
            _ => None,
        }));
        group.members_came("t", "a:1", list(&["m1"]), now);
        group.notified(now);
    }
    assert_eq!(asked, ["a:1", "c:1", "a:1", "c:1"]);
}

#[test]
fn a_lost_connection_means_a_heartbeat_at_once_and_a_dead_broker_longer_waits() {
    let (mut group, now) = joined();
    group.disconnected("a:1", now);
    assert_eq!(group.steps(now), [heartbeat("a:1")]);
    let mut waits = Vec::new();
    let mut later = now;
    for _ in 0..7 {
        group.heartbeat_came("a:1", false, later);
        group.disconnected("a:1", later);
        let due = group.next_due().unwrap();
        waits.push((due - later).as_millis());
        later = due;
        assert!(group.steps(later).contains(&heartbeat("a:1")));
    }
    assert_eq!(waits, [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
}

#[test]
fn the_retry_topic_is_created_by_the_first_heartbeat() {
    let (mut group, now) = group(true);
    assert_eq!(group.steps(now), [ask_route("%RETRY%g"), ask_route("t")]);
    assert!(group.route_came("%RETRY%g", Ok(None), now).is_ok(), "that is no trouble");
    group.route_came("t", route("t", &["a"]), now).unwrap();
    assert_eq!(group.steps(now), [heartbeat("a:1")]);
    group.heartbeat_came("a:1", true, now);
    assert!(group.steps(now).contains(&ask_route("%RETRY%g")));
}

#[test]
fn a_topic_that_nobody_knows_keeps_the_route_that_it_had() {
    let (mut group, now) = joined();
    let queue = QueueId::on_broker("t", "a", 0);
    let error = group.route_came("t", Ok(None), now).unwrap_err();
    assert_eq!(error.to_string(), "no name server knows topic t");
    assert_eq!(group.master_of(queue), Some("a:1"));
    assert!(group.route_came("t", Err(Error::timeout("no answer")), now).is_err());
    assert_eq!(group.master_of(queue), Some("a:1"));
}

#[test]
fn brokers_that_no_route_names_are_forgotten() {
    let (mut group, now) = joined();
    group.route_came("t", route("t", &["b"]), now).unwrap();
    assert_eq!(group.brokers().collect::<Vec<_>>(), ["b:1"]);
    assert_eq!(group.steps(now), [heartbeat("b:1")]);
    assert!(!group.heartbeat_came("a:1", true, now), "an answer that is too late");
}
