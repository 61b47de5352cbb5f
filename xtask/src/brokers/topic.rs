//! Topics of a Kafka broker.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;

/// Creates a topic that is kept once.
///
/// # Errors
///
/// What was refused, and why: also where there is such a topic.
pub(crate) fn create_kafka_topic(servers: &str, name: &str, partitions: u32) -> Result<(), String> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers);
    let admin: AdminClient<DefaultClientContext> =
        config.create().map_err(|error| format!("connect to {servers}: {error}"))?;
    let count = i32::try_from(partitions).unwrap_or(i32::MAX);
    let topic = NewTopic::new(name, count, TopicReplication::Fixed(1));
    let created = block_on(admin.create_topics(&[topic], &AdminOptions::new()));
    let created = created.map_err(|error| format!("create topic {name}: {error}"))?;
    created.into_iter().try_for_each(|one| {
        one.map(drop).map_err(|(topic, code)| format!("create topic {topic}: {code}"))
    })
}

/// Waits for a future of the admin client, which completes it on a thread of its own.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
