//! A name server and brokers in this process, over loopback: the part of RocketMQ's protocol that
//! a consumer group needs, written apart from the client and from what brokers are seen to do.
//!
//! Good enough for routes, membership and its notifications, pulls with long polling, offsets,
//! locks with a lease, sending, dead letters; and for faults: answers refused, withheld or spoilt,
//! connections cut, brokers killed and started again. Not a reference: that is Apache's broker.

use std::collections::{BTreeMap, HashMap};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) mod frame;
mod serve;
mod store;

use frame::Frame;
pub(crate) use store::{Log, Put};

/// Brokers and a name server. Everything ends with it.
pub(crate) struct Cluster {
    pub(crate) name_server: String,
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// Something was stored, or a held pull has to look again.
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) brokers: BTreeMap<String, Broker>,
    pub(crate) faults: Vec<Fault>,
    /// Every request that came, by broker, code and fields.
    pub(crate) seen: Vec<(String, i32, HashMap<String, String>)>,
    pub(crate) lock_lease: Duration,
    /// The number of the next connection.
    connections: u64,
    ended: bool,
}

#[derive(Default)]
pub(crate) struct Broker {
    pub(crate) address: String,
    pub(crate) up: bool,
    pub(crate) topics: BTreeMap<String, Vec<Log>>,
    pub(crate) offsets: HashMap<(String, String, i32), i64>,
    /// What an operator has set; the next pull is told.
    pub(crate) resets: HashMap<(String, String, i32), i64>,
    pub(crate) locks: HashMap<(String, String, i32), (String, Instant)>,
    /// By group and client id.
    pub(crate) members: BTreeMap<String, BTreeMap<String, u64>>,
    /// By group: topic and expression.
    pub(crate) subscriptions: HashMap<String, BTreeMap<String, String>>,
    connections: HashMap<u64, Arc<Mutex<TcpStream>>>,
}

/// What happens to requests instead of what should.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) broker: &'static str,
    pub(crate) code: i32,
    /// Only requests for this queue.
    pub(crate) queue: Option<i32>,
    pub(crate) times: usize,
    pub(crate) what: What,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Refuse(i32),
    /// No answer, ever.
    Ignore,
    /// The answer of one who has done it, and nothing done.
    Pretend,
    HangUp,
    /// The answer, with this done to its body.
    Spoil(fn(&mut Vec<u8>)),
    /// The answer, with its `nextBeginOffset` further by this.
    Skip(i64),
}

impl Cluster {
    /// A name server, and brokers of these names.
    pub(crate) fn start(brokers: &[&'static str]) -> Self {
        let state = State { lock_lease: Duration::from_secs(60), ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name_server = listener.local_addr().unwrap().to_string();
        let cluster = Self { name_server, shared };
        cluster.shared.listen(listener, "");
        for broker in brokers {
            cluster.up(broker);
        }
        cluster
    }

    /// Starts a broker, or starts it again, at the address that it had.
    pub(crate) fn up(&self, name: &'static str) {
        let address = self.shared.lock().brokers.get(name).map(|broker| broker.address.clone());
        let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut state = self.shared.lock();
        let broker = state.brokers.entry(name.to_owned()).or_default();
        (broker.address, broker.up) = (address, true);
        drop(state);
        self.shared.listen(listener, name);
    }

    /// Kills a broker: connections, members and locks are gone, messages and offsets are not.
    pub(crate) fn down(&self, name: &str) {
        let mut state = self.shared.lock();
        let broker = state.brokers.get_mut(name).unwrap();
        broker.up = false;
        broker.members.clear();
        broker.locks.clear();
        for (_, stream) in broker.connections.drain() {
            let _ = stream.lock().unwrap().shutdown(Shutdown::Both);
        }
        let address = broker.address.clone();
        drop(state);
        self.shared.changed.notify_all();
        // The listener sees that it is down when something connects.
        let _ = TcpStream::connect(address);
    }

    /// Cuts the connections to a broker; it stays up.
    pub(crate) fn cut(&self, name: &str) {
        for (_, stream) in self.state().brokers.get_mut(name).unwrap().connections.drain() {
            let _ = stream.lock().unwrap().shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Changes something that held pulls may wait for.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.shared.lock());
        self.shared.changed.notify_all();
        result
    }

    pub(crate) fn fault(&self, broker: &'static str, code: i32, times: usize, what: What) {
        self.state().faults.push(Fault { broker, code, queue: None, times, what });
    }

    pub(crate) fn topic(&self, broker: &str, topic: &str, queues: usize) {
        self.change(|state| {
            let broker = state.brokers.get_mut(broker).unwrap();
            broker.topics.insert(topic.to_owned(), vec![Log::default(); queues]);
        });
    }

    /// Stores a message and returns its offset.
    pub(crate) fn put(&self, broker: &str, topic: &str, queue: usize, put: Put) -> i64 {
        self.change(|state| {
            let broker = state.brokers.get_mut(broker).unwrap();
            broker.topics.get_mut(topic).unwrap()[queue].put(put)
        })
    }

    /// How many connections were made, to whomever.
    pub(crate) fn connections(&self) -> u64 {
        self.state().connections
    }

    /// How often a request came to a broker.
    pub(crate) fn count(&self, broker: &str, code: i32) -> usize {
        self.state().seen.iter().filter(|(b, c, _)| b == broker && *c == code).count()
    }

    pub(crate) fn committed(
        &self,
        broker: &str,
        group: &str,
        topic: &str,
        queue: i32,
    ) -> Option<i64> {
        let key = (group.to_owned(), topic.to_owned(), queue);
        self.state().brokers[broker].offsets.get(&key).copied()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let names: Vec<String> = self.state().brokers.keys().cloned().collect();
        self.state().ended = true;
        for name in names {
            self.down(&name);
        }
        let _ = TcpStream::connect(&self.name_server);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn listen(self: &Arc<Self>, listener: TcpListener, name: &'static str) {
        let shared = Arc::clone(self);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut state = shared.lock();
                let down = state.brokers.get(name).is_some_and(|broker| !broker.up);
                if state.ended || down {
                    return;
                }
                let stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                state.connections += 1;
                let id = state.connections;
                let output = Arc::new(Mutex::new(stream.try_clone().unwrap()));
                if let Some(broker) = state.brokers.get_mut(name) {
                    broker.connections.insert(id, Arc::clone(&output));
                }
                drop(state);
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.serve(name, id, stream, &output));
            }
        });
    }

    fn serve(
        self: &Arc<Self>,
        name: &'static str,
        id: u64,
        mut input: TcpStream,
        output: &Arc<Mutex<TcpStream>>,
    ) {
        while let Some(request) = Frame::read(&mut input) {
            let (fault, holds) = (self.note(name, &request), request_holds(&request));
            let (shared, output) = (Arc::clone(self), Arc::clone(output));
            let answer = move || {
                let mut answer = match fault {
                    None | Some(What::Spoil(_) | What::Skip(_)) => {
                        shared.answer(name, id, &request)?
                    }
                    Some(What::Refuse(code)) => Frame::answer(code),
                    Some(What::Pretend) => Frame::answer(0),
                    Some(What::Ignore) => return None,
                    Some(What::HangUp) => {
                        let _ = output.lock().unwrap().shutdown(Shutdown::Both);
                        return None;
                    }
                };
                match fault {
                    Some(What::Spoil(spoil)) => spoil(&mut answer.body),
                    Some(What::Skip(more)) => {
                        let next: i64 = answer.fields["nextBeginOffset"].parse().unwrap();
                        let next = (next + more).to_string();
                        answer.fields.insert("nextBeginOffset".to_owned(), next);
                    }
                    _ => {}
                }
                (!request.one_way).then(|| answer.write(request.opaque, 1, &output))
            };
            // A pull may be held back; nothing else is.
            if holds {
                thread::spawn(answer);
            } else {
                answer();
            }
        }
        self.gone(name, id);
    }

    /// Takes down that a request came, and what is to go wrong with it.
    fn note(&self, name: &str, request: &Frame) -> Option<What> {
        let mut state = self.lock();
        state.seen.push((name.to_owned(), request.code, request.fields.clone()));
        let queue = request.fields.get("queueId").and_then(|id| id.parse().ok());
        let hit = state.faults.iter_mut().find(|fault| {
            fault.broker == name
                && fault.code == request.code
                && fault.times > 0
                && (fault.queue.is_none() || fault.queue == queue)
        })?;
        hit.times -= 1;
        Some(hit.what.clone())
    }

    /// A connection is gone, and its members with it.
    fn gone(&self, name: &str, id: u64) {
        let mut state = self.lock();
        let Some(broker) = state.brokers.get_mut(name) else { return };
        broker.connections.remove(&id);
        for (group, members) in broker.members.clone() {
            if members.values().any(|connection| *connection == id) {
                broker.members.get_mut(&group).unwrap().retain(|_, connection| *connection != id);
                broker.notify(&group);
            }
        }
    }
}

impl Broker {
    /// Tells the members of a group that they have changed.
    pub(crate) fn notify(&self, group: &str) {
        let notification = Frame::request(40).with("consumerGroup", group);
        for connection in self.members.get(group).into_iter().flat_map(BTreeMap::values) {
            if let Some(output) = self.connections.get(connection) {
                notification.write(0, 2, output);
            }
        }
    }

    /// Sends a request of the broker's own to the members of a group.
    pub(crate) fn tell(&self, group: &str, request: &Frame) {
        for connection in self.members.get(group).into_iter().flat_map(BTreeMap::values) {
            if let Some(output) = self.connections.get(connection) {
                request.write(7, 0, output);
            }
        }
    }
}

fn request_holds(request: &Frame) -> bool {
    request.code == 11 && request.fields["sysFlag"].parse::<i32>().unwrap() & 2 != 0
}
