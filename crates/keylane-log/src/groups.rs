//! What is done to groups from outside: forgetting one, moving its offset.

use std::sync::Arc;

use keylane_source::{Commit, CommitTag, Position, QueueId, Watermark};

use crate::Error;
use crate::error::Kind;
use crate::shared::Core;
use crate::state;
use crate::topic::Topic;

pub(crate) fn forget_group(core: &Core, topic: &str, group: &str) -> Result<(), Error> {
    let doing = || format!("forget group {group:?} of topic {topic:?}");
    let topic = core.topic(topic)?;
    core.check_running()?;
    if core.live.lock().contains(&(topic.number, Arc::from(group))) {
        return Err(in_use(group, &topic.name).context(doing()));
    }
    core.background.drain();
    check_known(core, &topic, group).map_err(|error| error.context(doing()))?;
    let key = state::group_key(topic.number, group);
    let mut write = core.store.write();
    write.remove_state(&key);
    for entry in core.store.states(&state::commits_prefix(topic.number, group)) {
        write.remove_state(&entry?.0);
    }
    write.commit(core.syncs_each_batch()).map_err(|error| core.stop(error.context(doing())))?;
    core.background.written();
    Ok(())
}

fn check_known(core: &Core, topic: &Topic, group: &str) -> Result<(), Error> {
    if core.store.state(&state::group_key(topic.number, group))?.is_some() {
        return Ok(());
    }
    Err(Error::new(Kind::NotFound, format!("topic {:?} knows no group {group:?}", topic.name)))
}

pub(crate) fn move_offset(
    core: &Core,
    group: &str,
    queue: QueueId,
    to: Position,
) -> Result<(), Error> {
    let doing = || format!("move what group {group:?} committed for {queue} to {to}");
    let topic = core.topic(queue.topic())?;
    let bounds = topic.queue(queue.index()).map_err(|error| error.context(doing()))?;
    if bounds.id != queue {
        return Err(Error::invalid(format!("{}: there is no such queue", doing())));
    }
    let (begin, end) = (bounds.begin(), bounds.end());
    if to.get() < begin || to.get() > end {
        return Err(Error::invalid(format!("{}: it goes from {begin} to {end}", doing())));
    }
    check_known(core, &topic, group).map_err(|error| error.context(doing()))?;
    let subscribers = topic.subscribers.lock();
    let consumer = subscribers.iter().find(|inbox| &*inbox.group == group).cloned();
    drop(subscribers);
    // First nothing new, then nothing old: no commit of the consumer comes after ours.
    if let Some(consumer) = &consumer {
        consumer.moving(queue.index());
    }
    core.background.drain();
    let watermark = Watermark::from(to);
    let commit = Commit { queue, watermark, metadata: String::new(), tag: CommitTag::default() };
    let written = core.write_commits(&topic, std::iter::once((group, &commit)));
    core.background.written();
    if let Some(consumer) = &consumer {
        consumer.moved(queue.index(), written.is_ok().then_some(to));
    }
    written.map_err(|error| error.context(doing()))
}

pub(crate) fn in_use(group: &str, topic: &str) -> Error {
    Error::new(
        Kind::InUse,
        format!("group {group:?} has a live consumer of topic {topic:?}; it can have one"),
    )
}
