//! An Apache RocketMQ name server and broker for tests, on loopback, without Docker.
//!
//! The jars come from the Maven registry through the ordinary `mvn` client, once. Everything lives
//! in one folder (jars, messages, configuration, logs, process ids). [`down`] keeps the messages, so
//! that [`up`] after it is a restart; for an empty broker delete the folder. [`up`] starts what does
//! not run: after [`kill_broker`] the broker alone.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{maven, remove};
use crate::flags::RocketmqVersion;

const POM: &str = include_str!("rocketmq/pom.xml");
const NAMESRV_PROPERTIES: &str = include_str!("rocketmq/namesrv.properties");
const BROKER_PROPERTIES: &str = include_str!("rocketmq/broker.properties");
/// What versions before 5.0 want besides: to run on Java 17, and a configuration of their logs.
const JAVA_BEFORE_5: &str = include_str!("rocketmq/java-before-5.options");
const LOGBACK: &str = include_str!("rocketmq/logback.xml");
/// A topic that every broker of the cluster has, and says so when it registers.
const CLUSTER: &str = "DefaultCluster";
/// The answer that comes with a route.
const FOUND: i64 = 0;
const START_TIMEOUT: Duration = Duration::from_secs(300);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A name server and a broker that run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    /// What a client takes as its name server.
    pub(crate) name_server: String,
    /// The name server's process.
    pub(crate) name_server_pid: u32,
    /// The broker's process.
    pub(crate) broker_pid: u32,
}

/// Starts the name server and the broker in `dir`, or finds those that run there, and waits until a
/// route answers.
///
/// # Errors
///
/// A sentence: what is missing (Java, Maven), or what failed and where its log lies.
pub(crate) fn up(dir: &Path, version: RocketmqVersion) -> Result<Running, String> {
    if let Some(running) = status(dir)? {
        return Ok(running);
    }
    fs::create_dir_all(dir).map_err(|e| format!("create {}: {e}", dir.display()))?;
    let folder = Folder(fs::canonicalize(dir).map_err(|e| format!("{}: {e}", dir.display()))?);
    check_java()?;
    folder.fetch_jars(version)?;
    folder.configure(version)?;
    for process in [NAME_SERVER, BROKER] {
        if folder.pid(process)?.is_none() {
            folder.start(process, version)?;
        }
        // A broker that finds no name server tries again only after half a minute.
        folder.wait_for(process)?;
    }
    status(dir)?.ok_or_else(|| format!("RocketMQ ended; its logs are in {}", dir.display()))
}

/// Stops the broker and the name server of `dir`, by the process ids that [`up`] has noted. Does
/// nothing where none runs.
///
/// # Errors
///
/// A process could not be stopped.
pub(crate) fn down(dir: &Path) -> Result<(), String> {
    let folder = Folder(dir.to_owned());
    folder.stop(BROKER, "-TERM")?;
    folder.stop(NAME_SERVER, "-TERM")
}

/// Throws away what the stopped broker of `dir` stored.
///
/// # Errors
///
/// It could not be removed.
pub(crate) fn empty(dir: &Path) -> Result<(), String> {
    remove(&dir.join("store"))
}

/// Kills the broker of `dir` as a crash would. [`up`] starts it again.
///
/// # Errors
///
/// The process could not be stopped.
pub(crate) fn kill_broker(dir: &Path) -> Result<(), String> {
    Folder(dir.to_owned()).stop(BROKER, "-KILL")
}

/// The name server and the broker that run in `dir`, if both do.
///
/// # Errors
///
/// The folder holds something that is not ours.
pub(crate) fn status(dir: &Path) -> Result<Option<Running>, String> {
    let folder = Folder(dir.to_owned());
    let (Some(name_server_pid), Some(broker_pid)) = (folder.pid(NAME_SERVER)?, folder.pid(BROKER)?)
    else {
        return Ok(None);
    };
    let name_server = format!("127.0.0.1:{}", folder.port(NAME_SERVER)?);
    Ok(Some(Running { name_server, name_server_pid, broker_pid }))
}

/// One of the two processes.
#[derive(Debug, Clone, Copy)]
struct Process {
    name: &'static str,
    class: &'static str,
    heap: &'static str,
}

const NAME_SERVER: Process = Process {
    name: "namesrv",
    class: "org.apache.rocketmq.namesrv.NamesrvStartup",
    heap: "-Xmx128m",
};
const BROKER: Process =
    Process { name: "broker", class: "org.apache.rocketmq.broker.BrokerStartup", heap: "-Xmx768m" };

/// The folder that everything lives in.
struct Folder(PathBuf);

impl Folder {
    fn file(&self, process: Process, ending: &str) -> PathBuf {
        self.0.join(format!("{}.{ending}", process.name))
    }

    fn fetch_jars(&self, version: RocketmqVersion) -> Result<(), String> {
        let wanted_pom = POM.replace("{version}", version.name());
        let (lib, pom) = (self.0.join("lib"), self.0.join("pom.xml"));
        // The pom is written last: it says which jars are there, and that all of them are.
        if fs::read_to_string(&pom).is_ok_and(|known| known == wanted_pom) {
            return Ok(());
        }
        let _ = fs::remove_dir_all(&lib);
        let wanted = self.0.join("wanted.xml");
        write(&wanted, &wanted_pom)?;
        maven::copy_dependencies(&wanted, &lib, "RocketMQ's")?;
        fs::rename(&wanted, &pom).map_err(|e| format!("rename {}: {e}", wanted.display()))
    }

    /// Ports are chosen once and kept: a restarted broker is where its clients look for it.
    fn configure(&self, version: RocketmqVersion) -> Result<(), String> {
        let broker = self.file(BROKER, "properties");
        if broker.exists() {
            return Ok(());
        }
        let namesrv = free_ports(1)?;
        // The broker's second door is two ports below its first one.
        let ports = free_ports(4)?;
        let fill = |text: &str| {
            text.replace("{home}", &self.0.display().to_string())
                .replace("{namesrv}", &namesrv.to_string())
                .replace("{broker}", &(ports + 2).to_string())
                .replace("{ha}", &(ports + 3).to_string())
        };
        write(&self.file(NAME_SERVER, "properties"), &fill(NAMESRV_PROPERTIES))?;
        if version == RocketmqVersion::Before5 {
            let conf = self.0.join("conf");
            fs::create_dir_all(&conf).map_err(|e| format!("create {}: {e}", conf.display()))?;
            for process in [NAME_SERVER, BROKER] {
                write(&conf.join(format!("logback_{}.xml", process.name)), LOGBACK)?;
            }
        }
        write(&broker, &fill(BROKER_PROPERTIES))
    }

    fn start(&self, process: Process, version: RocketmqVersion) -> Result<(), String> {
        let path = self.file(process, "log");
        let log = fs::File::create(&path).map_err(|e| format!("create {}: {e}", path.display()))?;
        let errors = log.try_clone().map_err(|e| format!("share the log: {e}"))?;
        let home = self.0.display();
        let mut java = Command::new("java");
        java.args(["-Xms64m", process.heap, "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC"]);
        // Without these it writes into the user's own folder.
        java.arg(format!("-Duser.home={home}")).arg(format!("-Drocketmq.home.dir={home}"));
        if version == RocketmqVersion::Before5 {
            java.args(JAVA_BEFORE_5.lines());
        }
        java.arg("-cp").arg(self.0.join("lib").join("*"));
        java.arg(process.class).arg("-c").arg(self.file(process, "properties"));
        java.current_dir(&self.0).stdin(Stdio::null()).stdout(log).stderr(errors);
        // A group of its own: an interrupt at the terminal does not reach it.
        let child = java.process_group(0).spawn().map_err(|e| format!("start java: {e}"))?;
        write(&self.file(process, "pid"), &child.id().to_string())
    }

    /// Waits until the name server answers, or knows the broker.
    fn wait_for(&self, process: Process) -> Result<(), String> {
        let port = self.port(NAME_SERVER)?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match (process.name == BROKER.name, route_code(port, CLUSTER)) {
                (true, Some(FOUND)) | (false, Some(_)) => return Ok(()),
                _ => {}
            }
            let ended = self.pid(process)?.is_none();
            if ended || Instant::now() >= deadline {
                let _ = down(&self.0);
                let what = if ended { "ended" } else { "does not answer" };
                let log = self.file(process, "log");
                return Err(format!("RocketMQ's {} {what}: {}", process.name, log.display()));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// The process, if it runs.
    fn pid(&self, process: Process) -> Result<Option<u32>, String> {
        let path = self.file(process, "pid");
        let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
        let pid: u32 = text
            .trim()
            .parse()
            .map_err(|_| format!("{} holds no process id: {text:?}", path.display()))?;
        // A process id may belong to somebody else by now.
        let ours = command_line(pid)?.is_some_and(|line| line.contains(process.class));
        Ok(ours.then_some(pid))
    }

    fn stop(&self, process: Process, signal: &str) -> Result<(), String> {
        for signal in [signal, "-KILL"] {
            let Some(pid) = self.pid(process)? else { break };
            run(Command::new("kill").args([signal, &pid.to_string()]), "stop RocketMQ")?;
            let deadline = Instant::now() + STOP_TIMEOUT;
            while self.pid(process)?.is_some() && Instant::now() < deadline {
                thread::sleep(LOOK_AGAIN);
            }
        }
        if let Some(pid) = self.pid(process)? {
            return Err(format!("RocketMQ's {} (process {pid}) does not end", process.name));
        }
        match fs::remove_file(self.file(process, "pid")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("forget the process of RocketMQ's {}: {error}", process.name))
            }
            _ => Ok(()),
        }
    }

    fn port(&self, process: Process) -> Result<u16, String> {
        let path = self.file(process, "properties");
        let text =
            fs::read_to_string(&path).map_err(|e| format!("read {}: {e}", path.display()))?;
        port_of(&text).ok_or_else(|| format!("{} names no port", path.display()))
    }
}

/// The port in a configuration of ours.
fn port_of(properties: &str) -> Option<u16> {
    properties.lines().find_map(|line| line.strip_prefix("listenPort="))?.trim().parse().ok()
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("write {}: {e}", path.display()))
}

fn check_java() -> Result<(), String> {
    let java = Command::new("java").arg("-version").output();
    let output =
        java.map_err(|e| format!("java cannot be run ({e}): RocketMQ's broker needs it"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("RocketMQ's broker needs Java; `java -version`: {}", text.trim()))
}

/// Runs to the end; the error carries the last lines of what it printed.
fn run(command: &mut Command, why: &str) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{name} cannot be run ({e}): {why}"))?;
    if output.status.success() {
        return Ok(());
    }
    let printed = [&output.stdout[..], &output.stderr[..]].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let lines: Vec<_> = printed.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(8)..].join("\n  ");
    Err(format!("{name} failed with {}: {why}\n  {last}", output.status))
}

/// The first of this many neighbouring ports that are free on loopback.
fn free_ports(count: u16) -> Result<u16, String> {
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    for _ in 0..100 {
        let first = bind(0).and_then(|socket| socket.local_addr());
        let first = first.map_err(|e| format!("find a free port on loopback: {e}"))?.port();
        let end = first.checked_add(count);
        if end.is_some_and(|end| (first..end).all(|port| bind(port).is_ok())) {
            return Ok(first);
        }
    }
    Err(format!("no {count} neighbouring ports are free on loopback"))
}

/// What the name server answers when it is asked for a topic's brokers; `None`: nothing yet.
fn route_code(port: u16, topic: &str) -> Option<i64> {
    let ask = || -> std::io::Result<Option<i64>> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(&route_request(topic))?;
        let mut head = [0; 8];
        stream.read_exact(&mut head)?;
        let header = u32::from_be_bytes([0, head[5], head[6], head[7]]);
        let mut text = vec![0; header as usize];
        stream.read_exact(&mut text)?;
        let answer: serde_json::Value = serde_json::from_slice(&text)?;
        Ok(answer["code"].as_i64())
    };
    ask().unwrap_or(None)
}

/// A frame: its length, the header's length, a header without a body. Request 105 asks for a route.
fn route_request(topic: &str) -> Vec<u8> {
    let header = serde_json::json!({
        "code": 105, "flag": 0, "language": "JAVA", "opaque": 1, "version": 479,
        "serializeTypeCurrentRPC": "JSON", "extFields": {"topic": topic},
    });
    let header = header.to_string().into_bytes();
    let length = u32::try_from(header.len()).unwrap_or(0);
    [&(length + 4).to_be_bytes()[..], &length.to_be_bytes()[..], &header[..]].concat()
}

/// What a process was started with; none where there is no such process (a zombie included).
fn command_line(pid: u32) -> Result<Option<String>, String> {
    let mut ps = Command::new("ps");
    let output = ps
        .args(["-ww", "-o", "command=", "-p", &pid.to_string()])
        .output()
        .map_err(|e| format!("ps cannot be run ({e}): it tells whether RocketMQ runs"))?;
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok((!line.is_empty()).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_back_from_the_configuration() {
        let text = BROKER_PROPERTIES.replace("{broker}", "12345");
        assert_eq!(port_of(&text), Some(12_345));
        assert_eq!(port_of(&NAMESRV_PROPERTIES.replace("{namesrv}", "12346")), Some(12_346));
        assert_eq!(port_of("haListenPort=1"), None);
    }

    #[test]
    fn an_empty_folder_has_no_broker_and_needs_no_stop() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(status(dir.path()), Ok(None));
        assert_eq!(down(dir.path()), Ok(()));
        assert_eq!(kill_broker(dir.path()), Ok(()));
    }

    #[test]
    fn a_process_id_of_somebody_else_is_not_the_broker() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().to_owned());
        for process in [NAME_SERVER, BROKER] {
            fs::write(folder.file(process, "pid"), std::process::id().to_string()).unwrap();
        }
        assert_eq!(status(dir.path()), Ok(None));
        fs::write(folder.file(BROKER, "pid"), "soon").unwrap();
        assert!(folder.pid(BROKER).unwrap_err().contains("holds no process id"));
    }

    #[test]
    fn a_request_is_framed_as_brokers_want_it() {
        let frame = route_request("t");
        let total = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
        let header = u32::from_be_bytes(frame[4..8].try_into().unwrap()) as usize;
        assert_eq!((total, header), (frame.len() - 4, frame.len() - 8));
        let header: serde_json::Value = serde_json::from_slice(&frame[8..]).unwrap();
        assert_eq!(header["extFields"]["topic"], "t");
    }
}
