//! The calls that wait for their answer, each for at most the client's timeout.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use keylane_source::{Position, QueueId, Watermark};

use super::{Client, Route, now_ms};
use crate::wire::reply::{self, Failure};
use crate::wire::request::{self, Request};
use crate::wire::{Frame, body::Cluster, code};
use crate::{Error, Outgoing, SendBack};

/// The group that this client's own messages are sent in the name of. Means nothing to a broker
/// outside of transactions.
const PRODUCER_GROUP: &str = "keylane";

/// Where a message was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The id that the broker gave to it.
    pub message_id: String,
    /// The queue.
    pub queue: QueueId,
    /// Its offset there; of a batch, its first message's.
    pub offset: Position,
}

impl Client {
    fn wait<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Self, Box<dyn FnOnce(Result<T, Error>) + Send>),
    ) -> Result<T, Error> {
        let (sender, receiver) = bounded(1);
        ask(self, Box::new(move |answer| drop(sender.send(answer))));
        receiver.recv().unwrap_or_else(|_| Err(Error::closed()))
    }

    pub(crate) fn invoke<T: Send + 'static>(
        &self,
        address: &str,
        request: Request,
        read: fn(&Frame) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        self.wait(|client, report| client.ask(address, request, read, report))
    }

    fn at_queue<T: Send + 'static>(
        &self,
        queue: QueueId,
        request: Request,
        read: fn(&Frame) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let name = code::name(request.code);
        let address = self.master_of(queue)?;
        let answer = self.invoke(&address, request, read);
        answer.map_err(|error| error.doing(format_args!("{name} of {queue} at {address}")))
    }

    fn master_of(&self, queue: QueueId) -> Result<String, Error> {
        let broker = queue.broker().unwrap_or_default();
        let mut route = self.known_route(queue.topic())?;
        if route.master(broker).is_none() {
            route = self.route(queue.topic())?;
        }
        route.master(broker).map(str::to_owned).ok_or_else(|| {
            Error::unreachable(format!("{queue}: broker {broker:?} has no master at present"))
        })
    }

    /// Where a topic's queues were when that was asked last.
    pub(crate) fn known_route(&self, topic: &str) -> Result<Arc<Route>, Error> {
        let known = self.0.routes.lock().get(topic).cloned();
        known.map_or_else(|| self.route(topic), Ok)
    }

    /// Where a topic's queues are, asked anew.
    ///
    /// # Errors
    ///
    /// No name server can be reached, or none knows the topic.
    pub fn route(&self, topic: &str) -> Result<Arc<Route>, Error> {
        let route = self.wait(|client, report| client.ask_route(topic, report))?;
        let route = route.ok_or_else(|| {
            let refused = Failure::Refused {
                code: code::answer::TOPIC_NOT_EXIST,
                remark: "no name server knows it".to_owned(),
            };
            Error::from(refused).doing(format_args!("route of topic {topic}"))
        })?;
        let route = Arc::new(route);
        self.0.routes.lock().insert(topic.to_owned(), Arc::clone(&route));
        Ok(route)
    }

    /// Creates a topic with this many queues on every broker of the cluster, or changes it, and
    /// waits until the name servers know it.
    ///
    /// # Errors
    ///
    /// A broker or name server refuses or cannot be reached, there is no broker, or the name
    /// servers did not learn of it within the timeout.
    pub fn create_topic(&self, topic: &str, queues: u32) -> Result<Arc<Route>, Error> {
        let cluster = self.cluster()?;
        let brokers = cluster.broker_addr_table.values();
        let masters: Vec<&String> = brokers.filter_map(|b| b.broker_addrs.get("0")).collect();
        if masters.is_empty() {
            let error = Error::unreachable("there is no broker");
            return Err(error.doing(format_args!("create topic {topic}")));
        }
        for master in &masters {
            self.invoke(master, request::create_topic(topic, queues), reply::done)
                .map_err(|e| e.doing(format_args!("create topic {topic} at {master}")))?;
        }
        let deadline = Instant::now() + self.0.timeout;
        loop {
            let wanted = queues as usize * masters.len();
            match self.route(topic) {
                Ok(route) if route.readable().len() == wanted => return Ok(route),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Ok(route) if Instant::now() >= deadline => {
                    let error = format!("{} of {wanted} queues", route.readable().len());
                    return Err(Error::timeout(error).doing(format_args!("create topic {topic}")));
                }
                // The broker tells the name servers on its own; nobody tells us.
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn cluster(&self) -> Result<Cluster, Error> {
        let mut failure = Error::closed();
        for server in &self.0.name_servers {
            match self.invoke(server, request::cluster(), reply::cluster) {
                Ok(cluster) => return Ok(cluster),
                Err(error) => failure = error.doing("cluster"),
            }
        }
        Err(failure)
    }

    /// Sends a message to a queue.
    ///
    /// # Errors
    ///
    /// An empty body, which brokers take in a batch only, or a property that the protocol cannot
    /// carry; the broker refuses, cannot be reached or does not answer. After a timeout the message
    /// may have been stored all the same.
    pub fn send(&self, queue: QueueId, message: &Outgoing) -> Result<Sent, Error> {
        check(queue, std::slice::from_ref(message))?;
        if message.body().is_empty() {
            let error =
                format!("send to {queue}: an empty body, which brokers take in a batch only");
            return Err(Error::configuration(error));
        }
        let index = Some(queue.index());
        let request = request::send(PRODUCER_GROUP, queue.topic(), index, message, None, now_ms());
        Ok(stored(queue, self.at_queue(queue, request, reply::sent)?))
    }

    /// Sends messages to a queue, in this order, stored all or none.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); and a batch longer than what the broker takes (4 MiB unless it is
    /// set otherwise).
    pub fn send_batch(&self, queue: QueueId, messages: &[Outgoing]) -> Result<Sent, Error> {
        check(queue, messages)?;
        let request =
            request::send_batch(PRODUCER_GROUP, queue.topic(), queue.index(), messages, now_ms())
                .map_err(|error| Error::from(error).doing(format_args!("send to {queue}")))?;
        Ok(stored(queue, self.at_queue(queue, request, reply::sent)?))
    }

    /// Gives a message back to the broker that holds it, in the name of a group.
    ///
    /// # Errors
    ///
    /// The broker refuses, cannot be reached or does not answer.
    pub fn send_back(
        &self,
        group: &str,
        queue: QueueId,
        message: &SendBack<'_>,
    ) -> Result<(), Error> {
        self.at_queue(queue, request::send_back(group, message), reply::done)
    }

    /// The first offset that the broker has of a queue.
    ///
    /// # Errors
    ///
    /// The broker refuses, cannot be reached or does not answer.
    pub fn min_offset(&self, queue: QueueId) -> Result<Position, Error> {
        self.at_queue(queue, request::min_offset(queue), reply::offset)
    }

    /// The offset that the next message of a queue will get.
    ///
    /// # Errors
    ///
    /// The broker refuses, cannot be reached or does not answer.
    pub fn max_offset(&self, queue: QueueId) -> Result<Position, Error> {
        self.at_queue(queue, request::max_offset(queue), reply::offset)
    }

    /// The first offset whose message was stored at or after `timestamp_ms` (since 1970, UTC).
    ///
    /// # Errors
    ///
    /// The broker refuses, cannot be reached or does not answer.
    pub fn search_offset(&self, queue: QueueId, timestamp_ms: i64) -> Result<Position, Error> {
        self.at_queue(queue, request::search_offset(queue, timestamp_ms), reply::offset)
    }

    /// What a group has committed for a queue; `None`: nothing.
    ///
    /// # Errors
    ///
    /// The broker refuses, cannot be reached or does not answer: not the same as "nothing".
    pub fn committed(&self, group: &str, queue: QueueId) -> Result<Option<Watermark>, Error> {
        let request = request::query_offset(group, queue);
        let position = self.at_queue(queue, request, reply::committed)?;
        Ok(position.map(Watermark::from))
    }

    /// Stores a watermark for a group.
    ///
    /// # Errors
    ///
    /// The broker refuses, cannot be reached or does not answer.
    pub fn commit(&self, group: &str, queue: QueueId, watermark: Watermark) -> Result<(), Error> {
        let request = request::update_offset(group, queue, watermark.to_i64());
        self.at_queue(queue, request, reply::done)
    }

    /// The client ids of a group's members, as the broker of this queue lists them.
    ///
    /// # Errors
    ///
    /// The group has no member (code 1), or the broker cannot be reached or does not answer.
    pub fn members(&self, group: &str, queue: QueueId) -> Result<Vec<String>, Error> {
        self.at_queue(queue, request::members(group), reply::members)
    }
}

fn check(queue: QueueId, messages: &[Outgoing]) -> Result<(), Error> {
    match messages.iter().find_map(Outgoing::fault) {
        None if messages.is_empty() => {
            Err(Error::configuration(format!("send to {queue}: an empty batch")))
        }
        None => Ok(()),
        Some(fault) => Err(Error::configuration(format!("send to {queue}: {fault}"))),
    }
}

fn stored(queue: QueueId, sent: reply::Sent) -> Sent {
    let broker = queue.broker().unwrap_or_default();
    Sent {
        message_id: sent.message_id,
        queue: QueueId::on_broker(queue.topic(), broker, sent.queue),
        offset: sent.offset,
    }
}
