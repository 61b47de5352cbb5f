//! One broker or name server: its connection, made when it is needed and made again when it is
//! lost, and the two threads that serve it.
//!
//! Nobody who calls waits. Connecting and writing can: a thread of their own does them, so that a
//! broker that is dead or does not read holds up its own calls and no others. What it writes is
//! answered in any order; a second thread reads, decodes, and runs what is to be done with the
//! answer. It may decode messages there: brokers are decoded side by side.
//!
//! Invariants:
//!
//! 1. Each call is reported exactly once (`calls.rs`), at the latest at its deadline, give or take
//!    the time of connecting or of a blocked write, which are bounded.
//! 2. A reply never runs under a lock of this file.
//! 3. A connection on which something undecodable arrived is given up: nobody can tell where the
//!    next frame begins.

use std::io::{BufReader, BufWriter, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use parking_lot::Mutex;

use super::calls::{Call, Calls, ConnectionId, Reply};
use crate::Error;
use crate::wire::frame::not_supported;
use crate::wire::request::Request;
use crate::wire::{Frame, code};

/// After a failed attempt to connect, calls fail at once for this long.
const RECONNECT_AFTER: Duration = Duration::from_millis(200);
/// A peer that reads nothing for this long is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a link tells without being asked. Must not wait.
pub(crate) trait Listen: Send + Sync {
    /// A request of the broker's; `true` if it was understood. A broker that wants an answer to
    /// one that was not understood is told so.
    fn request(&self, address: &str, frame: &Frame) -> bool;

    /// The connection is lost; the calls that waited for it have failed.
    fn disconnected(&self, address: &str);
}

/// Keeps a count of threads: the other end of the channel sees its end when all are gone.
#[derive(Clone)]
pub(crate) struct Alive(
    #[expect(dead_code, reason = "held, not used: it counts by its drop")] Sender<()>,
);

impl Alive {
    pub(crate) fn new() -> (Self, Receiver<()>) {
        let (sender, receiver) = unbounded();
        (Self(sender), receiver)
    }
}

/// A handle; dropped, it ends the connection and its threads.
pub(crate) struct Link {
    commands: Sender<Command>,
}

enum Command {
    Call { request: Request, timeout: Duration, asked: Instant, reply: Reply },
    Write(Vec<u8>),
    Close,
}

impl Link {
    pub(crate) fn new(
        address: &str,
        connect_timeout: Duration,
        listen: Arc<dyn Listen>,
        alive: Alive,
    ) -> Result<Self, Error> {
        let (commands, inbox) = unbounded();
        let shared = Arc::new(Shared {
            address: address.to_owned(),
            connect_timeout,
            calls: Mutex::new(Calls::new()),
            listen,
            commands: commands.clone(),
            alive,
        });
        spawn(format!("rocketmq-w-{address}"), move || {
            Writer { shared, stream: None, failed: None }.run(&inbox);
        })?;
        Ok(Self { commands })
    }

    /// Sends a request; `reply` runs on a thread of the link. Does not wait.
    pub(crate) fn call(&self, request: Request, timeout: Duration, reply: Reply) {
        // Not taken by a thread that has ended, it is dropped, and that is an answer, too.
        let _ =
            self.commands.send(Command::Call { request, timeout, asked: Instant::now(), reply });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Fails only if the thread is gone already.
        let _ = self.commands.send(Command::Close);
    }
}

struct Shared {
    address: String,
    connect_timeout: Duration,
    calls: Mutex<Calls>,
    listen: Arc<dyn Listen>,
    commands: Sender<Command>,
    /// Both threads hold this struct.
    #[expect(dead_code, reason = "held, not used: it counts by its drop")]
    alive: Alive,
}

impl Shared {
    fn lost(&self, connection: ConnectionId, error: &Error) {
        let waiting = self.calls.lock().disconnected(connection);
        let Some(waiting) = waiting else { return };
        log::debug!("rocketmq {}: disconnected: {error}", self.address);
        for call in waiting {
            call.reply.give(Err(error.clone()));
        }
        self.listen.disconnected(&self.address);
    }
}

/// Owns the connection's writing half.
struct Writer {
    shared: Arc<Shared>,
    stream: Option<(ConnectionId, BufWriter<TcpStream>)>,
    failed: Option<(Instant, Error)>,
}

impl Writer {
    fn run(mut self, inbox: &Receiver<Command>) {
        loop {
            let look_at = self.shared.calls.lock().look_at();
            let command = match look_at {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => inbox.recv_deadline(at),
            };
            match command {
                Ok(command) => {
                    if !self.take(command) {
                        break;
                    }
                    // What is waiting goes out in one write.
                    while let Ok(command) = inbox.try_recv() {
                        if !self.take(command) {
                            self.close();
                            return;
                        }
                    }
                    self.flush();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.expire();
        }
        self.close();
    }

    /// `false`: it is time to end.
    fn take(&mut self, command: Command) -> bool {
        match command {
            Command::Call { request, timeout, asked, reply } => {
                let deadline = asked + timeout;
                if Instant::now() >= deadline {
                    let error = format!("no connection within {timeout:?}");
                    reply.give(Err(Error::timeout(error).doing(&self.shared.address)));
                } else if let Err(error) = self.connect() {
                    reply.give(Err(error));
                } else {
                    self.send(&request, Call { sent: asked, deadline, reply });
                }
            }
            // An answer to a connection that is gone is not worth a new one.
            Command::Write(bytes) => self.write(&bytes),
            Command::Close => return false,
        }
        true
    }

    fn send(&mut self, request: &Request, call: Call) {
        let opaque = self.shared.calls.lock().number();
        let bytes = match request.encode(opaque) {
            Ok(bytes) => bytes,
            Err(error) => return call.reply.give(Err(Error::from(error))),
        };
        // Registered before it is written: the answer may be here before the write returns.
        let registered = self.shared.calls.lock().register(opaque, call);
        match registered {
            Ok(()) => self.write(&bytes),
            Err(call) => call.reply.give(Err(self.hung_up())),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let Some((_, stream)) = &mut self.stream else { return };
        if let Err(error) = stream.write_all(bytes) {
            self.hang_up(&Error::unreachable(format!("{}: {error}", self.shared.address)));
        }
    }

    fn flush(&mut self) {
        let Some((_, stream)) = &mut self.stream else { return };
        if let Err(error) = stream.flush() {
            self.hang_up(&Error::unreachable(format!("{}: {error}", self.shared.address)));
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let (expired, silent) = self.shared.calls.lock().expire(now);
        for call in expired {
            let waited = call.deadline.saturating_duration_since(call.sent);
            let error = format!("no answer within {waited:?}");
            call.reply.give(Err(Error::timeout(error).doing(&self.shared.address)));
        }
        if silent {
            self.hang_up(&Error::unreachable(format!("{}: silent", self.shared.address)));
        }
    }

    /// Makes sure that there is a connection.
    fn connect(&mut self) -> Result<(), Error> {
        if self.stream.is_some() && self.shared.calls.lock().is_connected() {
            return Ok(());
        }
        self.stream = None;
        if let Some((when, error)) = &self.failed
            && when.elapsed() < RECONNECT_AFTER
        {
            return Err(error.clone());
        }
        let opened = self.open();
        self.failed = opened.as_ref().err().map(|error| (Instant::now(), error.clone()));
        opened
    }

    fn open(&mut self) -> Result<(), Error> {
        let address = &self.shared.address;
        let stream = dial(address, self.shared.connect_timeout)
            .map_err(|error| Error::unreachable(format!("connect to {address}: {error}")))?;
        let input = stream.try_clone();
        let input = input.map_err(|error| Error::unreachable(format!("{address}: {error}")))?;
        let connection = self.shared.calls.lock().connected();
        let shared = Arc::clone(&self.shared);
        spawn(format!("rocketmq-r-{address}"), move || read(&shared, connection, input))?;
        self.stream = Some((connection, BufWriter::new(stream)));
        Ok(())
    }

    fn hung_up(&self) -> Error {
        Error::unreachable(format!("{} hung up", self.shared.address))
    }

    fn hang_up(&mut self, error: &Error) {
        if let Some((connection, stream)) = self.stream.take() {
            // The reader ends by this; what was not written is given up with the connection.
            let (stream, _) = stream.into_parts();
            let _ = stream.shutdown(Shutdown::Both);
            self.shared.lost(connection, error);
        }
    }

    /// What is still in the inbox is answered by being dropped.
    fn close(&mut self) {
        self.flush();
        self.hang_up(&Error::closed());
    }
}

fn dial(address: &str, timeout: Duration) -> std::io::Result<TcpStream> {
    let mut failure = std::io::Error::new(std::io::ErrorKind::NotFound, "no such host");
    for target in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&target, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Reads until the connection ends, and reports its end.
fn read(shared: &Shared, connection: ConnectionId, input: TcpStream) {
    let mut input = BufReader::with_capacity(64 * 1024, input);
    let error = loop {
        match Frame::read_from(&mut input) {
            Ok(Some(frame)) => arrived(shared, frame),
            Ok(None) => break Error::unreachable(format!("{} hung up", shared.address)),
            Err(error) => break Error::unreachable(format!("{}: {error}", shared.address)),
        }
    };
    let _ = input.get_ref().shutdown(Shutdown::Both);
    shared.lost(connection, &error);
}

fn arrived(shared: &Shared, frame: Frame) {
    let now = Instant::now();
    if frame.is_response() {
        let call = shared.calls.lock().answered(frame.opaque, now);
        match call {
            Some(call) => call.reply.give(Ok(frame)),
            None => log::debug!("rocketmq {}: an answer that came too late", shared.address),
        }
        return;
    }
    shared.calls.lock().heard(now);
    if shared.listen.request(&shared.address, &frame) {
        return;
    }
    let name = code::name(frame.code);
    log::debug!("rocketmq {}: {name} ({}) is not answered", shared.address, frame.code);
    if !frame.is_one_way()
        && let Ok(bytes) = not_supported(&frame)
    {
        // Fails only when the link is closing.
        let _ = shared.commands.send(Command::Write(bytes));
    }
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name(name.clone()).spawn(run);
    match thread {
        Ok(_detached) => Ok(()),
        Err(error) => Err(Error::unreachable(format!("start thread {name}: {error}"))),
    }
}
