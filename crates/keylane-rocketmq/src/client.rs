//! A client of name servers and brokers: calls that do not wait, for the source, and calls that
//! do, for everybody else.
//!
//! One connection an address, shared by all calls; answers come in any order. No global state: a
//! client's connections and threads end with it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::Receiver;
use parking_lot::Mutex;

use crate::Error;
use crate::wire::Frame;
use crate::wire::reply::{self, Failure};
use crate::wire::request::{self, Request};

mod calls;
mod link;
mod route;
mod waiting;

pub(crate) use calls::Reply;
pub(crate) use link::Listen;
use link::{Alive, Link};
pub use route::Route;
pub use waiting::Sent;

/// A connection to a RocketMQ cluster, for what is not consuming: topics, sending, offsets.
///
/// Every call waits for its answer, for at most the timeout, and connects where it must. Clones
/// share connections; the last one that is dropped closes them.
///
/// ```no_run
/// use keylane_rocketmq::{Client, Outgoing};
///
/// let client = Client::new(["127.0.0.1:9876"])?;
/// client.create_topic("orders", 4)?;
/// let route = client.route("orders")?;
/// let sent = client.send(route.writable()[0], &Outgoing::new("withdraw 5").key("account-9"))?;
/// println!("stored at {}", sent.offset);
/// # Ok::<(), keylane_rocketmq::Error>(())
/// ```
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    name_servers: Vec<String>,
    /// The one that answered last.
    preferred: AtomicUsize,
    timeout: Duration,
    listen: Arc<dyn Listen>,
    /// `None` once closed.
    links: Mutex<Option<HashMap<String, Arc<Link>>>>,
    routes: Mutex<HashMap<String, Arc<Route>>>,
    alive: Mutex<Option<Alive>>,
    threads: Receiver<()>,
}

/// Nobody is interested.
struct Deaf;

impl Listen for Deaf {
    fn request(&self, _: &str, _: &Frame) -> bool {
        false
    }
    fn disconnected(&self, _: &str) {}
}

impl Client {
    /// How long a call waits for its answer, unless told otherwise: 5 seconds.
    pub const TIMEOUT: Duration = Duration::from_secs(5);

    /// A client of these name servers (`host:port`). Connects when it has to.
    ///
    /// # Errors
    ///
    /// No name server, or one that is not `host:port`.
    pub fn new<S: Into<String>>(name_servers: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        let name_servers = name_servers.into_iter().map(Into::into).collect();
        Self::open(name_servers, Self::TIMEOUT, Arc::new(Deaf))
    }

    pub(crate) fn open(
        name_servers: Vec<String>,
        timeout: Duration,
        listen: Arc<dyn Listen>,
    ) -> Result<Self, Error> {
        check_name_servers(&name_servers)?;
        let (alive, threads) = Alive::new();
        Ok(Self(Arc::new(Inner {
            name_servers,
            preferred: AtomicUsize::new(0),
            timeout,
            listen,
            links: Mutex::new(Some(HashMap::new())),
            routes: Mutex::new(HashMap::new()),
            alive: Mutex::new(Some(alive)),
            threads,
        })))
    }

    /// Sends a request to an address; `reply` runs on a thread of its connection. Does not wait.
    pub(crate) fn call(&self, address: &str, request: Request, timeout: Duration, reply: Reply) {
        match self.link(address) {
            Ok(link) => link.call(request, timeout, reply),
            Err(error) => reply.give(Err(error)),
        }
    }

    /// The same with the usual timeout and the answer read by `read`.
    pub(crate) fn ask<T: 'static>(
        &self,
        address: &str,
        request: Request,
        read: fn(&Frame) -> Result<T, Failure>,
        report: impl FnOnce(Result<T, Error>) + Send + 'static,
    ) {
        let reply = Reply::new(move |answer| {
            report(answer.and_then(|frame| read(&frame).map_err(Error::from)));
        });
        self.call(address, request, self.0.timeout, reply);
    }

    /// Asks one name server after the other, until one knows the topic; `None` if none does and
    /// none failed.
    pub(crate) fn ask_route(
        &self,
        topic: &str,
        report: impl FnOnce(Result<Option<Route>, Error>) + Send + 'static,
    ) {
        let first = self.0.preferred.load(Ordering::Relaxed);
        self.ask_route_from(topic.to_owned(), first, 0, None, Box::new(report));
    }

    fn ask_route_from(
        &self,
        topic: String,
        first: usize,
        tried: usize,
        failure: Option<Error>,
        report: Box<dyn FnOnce(Result<Option<Route>, Error>) + Send>,
    ) {
        let servers = &self.0.name_servers;
        if tried == servers.len() {
            return report(failure.map_or(Ok(None), Err));
        }
        let index = (first + tried) % servers.len();
        let client = self.clone();
        let request = request::route(&topic);
        self.ask(&servers[index], request, reply::route, move |answer| match answer {
            Ok(Some(data)) => {
                client.0.preferred.store(index, Ordering::Relaxed);
                report(Ok(Some(Route::new(&topic, data))));
            }
            Ok(None) => client.ask_route_from(topic, first, tried + 1, failure, report),
            Err(error) => {
                let error = error.doing(format_args!("route of topic {topic}"));
                client.ask_route_from(topic, first, tried + 1, Some(error), report);
            }
        });
    }

    fn link(&self, address: &str) -> Result<Arc<Link>, Error> {
        let mut links = self.0.links.lock();
        let links = links.as_mut().ok_or_else(Error::closed)?;
        if let Some(link) = links.get(address) {
            return Ok(Arc::clone(link));
        }
        let alive = self.0.alive.lock().clone().ok_or_else(Error::closed)?;
        // Half of a call's time: the other half is for the answer.
        let connect_timeout = self.0.timeout / 2;
        let link = Link::new(address, connect_timeout, Arc::clone(&self.0.listen), alive)?;
        let link = Arc::new(link);
        links.insert(address.to_owned(), Arc::clone(&link));
        Ok(link)
    }

    /// Ends all connections, and waits until their threads have ended or `deadline` has come.
    /// Calls that wait are answered by an error.
    pub(crate) fn close(&self, deadline: Instant) -> Result<(), Error> {
        *self.0.links.lock() = None;
        *self.0.alive.lock() = None;
        match self.0.threads.recv_deadline(deadline) {
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {
                Err(Error::timeout("close: a thread is still connecting or writing; it ends later"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name_servers", &self.0.name_servers).finish_non_exhaustive()
    }
}

pub(crate) fn check_name_servers(name_servers: &[String]) -> Result<(), Error> {
    if name_servers.is_empty() {
        return Err(Error::configuration("no name server: at least one host:port is needed"));
    }
    for server in name_servers {
        let port = server.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.and_then(|(_, port)| port.parse::<u16>().ok()).is_none_or(|port| port == 0) {
            let error =
                format!("name server {server:?} is not host:port, with a port of 1 to 65535");
            return Err(Error::configuration(error));
        }
    }
    Ok(())
}

/// Milliseconds since 1970 (UTC).
pub(crate) fn now_ms() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
}
