//! An Apache Kafka broker for tests: one KRaft node on loopback, without Docker.
//!
//! The jars come from the Maven registry through the ordinary `mvn` client, once. Everything lives
//! in one folder (jars, data, configuration, log, process id). [`down`] keeps the data, so that
//! [`up`] after it is a restart; for an empty broker delete the folder.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::maven;

const POM: &str = include_str!("kafka/pom.xml");
const PROPERTIES: &str = include_str!("kafka/server.properties");
/// A cluster's id is 16 bytes in base64: "keylane-broker-0".
const CLUSTER_ID: &str = "a2V5bGFuZS1icm9rZXItMA";
const JAVA_MIN: u32 = 17;
const START_TIMEOUT: Duration = Duration::from_secs(300);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A broker that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    /// What a client takes as `bootstrap.servers`.
    pub(crate) servers: String,
    /// The broker's process.
    pub(crate) pid: u32,
}

/// Starts the broker in `dir`, or finds the one that runs there, and waits until it answers.
///
/// # Errors
///
/// A sentence: what is missing (Java, Maven), or what failed and where its log lies.
pub(crate) fn up(dir: &Path) -> Result<Running, String> {
    if let Some(running) = status(dir)? {
        return Ok(running);
    }
    fs::create_dir_all(dir).map_err(|e| format!("create {}: {e}", dir.display()))?;
    let folder = Folder(fs::canonicalize(dir).map_err(|e| format!("{}: {e}", dir.display()))?);
    check_java()?;
    folder.fetch_jars()?;
    folder.configure()?;
    folder.start()
}

/// Stops the broker of `dir`, by the process id that [`up`] has noted. Where none runs, nothing.
///
/// # Errors
///
/// The process could not be stopped.
pub(crate) fn down(dir: &Path) -> Result<(), String> {
    let Some(running) = status(dir)? else { return Ok(()) };
    let stopped = |wait: Duration| -> Result<bool, String> {
        let deadline = Instant::now() + wait;
        while status(dir)?.is_some() {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(true)
    };
    signal(running.pid, "-TERM")?;
    if !stopped(STOP_TIMEOUT)? {
        signal(running.pid, "-KILL")?;
        if !stopped(STOP_TIMEOUT)? {
            return Err(format!("Kafka's process {} does not end", running.pid));
        }
    }
    fs::remove_file(Folder(dir.to_owned()).pid_file()).map_err(|e| format!("forget the pid: {e}"))
}

/// The broker that runs in `dir`, if one does.
///
/// # Errors
///
/// The folder holds something that is not ours.
pub(crate) fn status(dir: &Path) -> Result<Option<Running>, String> {
    let folder = Folder(dir.to_owned());
    let Ok(text) = fs::read_to_string(folder.pid_file()) else { return Ok(None) };
    let pid: u32 = text
        .trim()
        .parse()
        .map_err(|_| format!("{} holds no process id: {text:?}", folder.pid_file().display()))?;
    // A process id may belong to somebody else by now.
    if !command_line(pid)?.is_some_and(|line| line.contains("kafka.Kafka")) {
        return Ok(None);
    }
    Ok(Some(Running { servers: format!("127.0.0.1:{}", folder.port()?), pid }))
}

/// The folder that everything lives in.
struct Folder(PathBuf);

impl Folder {
    fn pid_file(&self) -> PathBuf {
        self.0.join("broker.pid")
    }

    fn properties(&self) -> PathBuf {
        self.0.join("server.properties")
    }

    fn log(&self) -> PathBuf {
        self.0.join("broker.log")
    }

    fn fetch_jars(&self) -> Result<(), String> {
        let (lib, pom) = (self.0.join("lib"), self.0.join("pom.xml"));
        // The pom is written last: it says which jars are there, and that all of them are.
        if fs::read_to_string(&pom).is_ok_and(|known| known == POM) {
            return Ok(());
        }
        let _ = fs::remove_dir_all(&lib);
        let wanted = self.0.join("wanted.xml");
        fs::write(&wanted, POM).map_err(|e| format!("write {}: {e}", wanted.display()))?;
        maven::copy_dependencies(&wanted, &lib, "Kafka's")?;
        fs::rename(&wanted, &pom).map_err(|e| format!("rename {}: {e}", wanted.display()))
    }

    /// Ports are chosen once and kept: a restarted broker is where its clients look for it.
    fn configure(&self) -> Result<(), String> {
        if self.properties().exists() {
            return Ok(());
        }
        let (broker, controller) = (free_port()?, free_port()?);
        let data = self.0.join("data");
        let text = PROPERTIES
            .replace("{port}", &broker.to_string())
            .replace("{controller}", &controller.to_string())
            .replace("{data}", &data.display().to_string());
        fs::write(self.0.join("new.properties"), text).map_err(|e| format!("write: {e}"))?;
        let mut format = self.java(128);
        format.args(["kafka.tools.StorageTool", "format", "--ignore-formatted"]);
        format.args(["-t", CLUSTER_ID, "-c"]).arg(self.0.join("new.properties"));
        run(&mut format, "Kafka's storage is formatted with Java")?;
        fs::rename(self.0.join("new.properties"), self.properties())
            .map_err(|e| format!("rename the configuration: {e}"))
    }

    fn start(&self) -> Result<Running, String> {
        let log = fs::File::create(self.log()).map_err(|e| format!("create the log: {e}"))?;
        let errors = log.try_clone().map_err(|e| format!("share the log: {e}"))?;
        let mut broker = self.java(256);
        broker.arg("kafka.Kafka").arg(self.properties());
        // A group of its own: an interrupt at the terminal does not reach it.
        broker.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let mut child = broker.spawn().map_err(|e| format!("start java: {e}"))?;
        fs::write(self.pid_file(), child.id().to_string())
            .map_err(|e| format!("write {}: {e}", self.pid_file().display()))?;
        let port = self.port()?;
        let deadline = Instant::now() + START_TIMEOUT;
        while !answers(port) {
            let log = self.log();
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!("Kafka ended with {status}; its log is {}", log.display()));
            }
            if Instant::now() >= deadline {
                let _ = down(&self.0);
                return Err(format!("Kafka does not answer; its log is {}", log.display()));
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(Running { servers: format!("127.0.0.1:{port}"), pid: child.id() })
    }

    fn java(&self, megabytes: u32) -> Command {
        let mut java = Command::new("java");
        java.args(["-Xms64m", &format!("-Xmx{megabytes}m"), "-XX:+UseSerialGC"]);
        java.args(["-Dlog4j2.level=WARN", "-cp"]).arg(self.0.join("lib").join("*"));
        java.current_dir(&self.0);
        java
    }

    fn port(&self) -> Result<u16, String> {
        let path = self.properties();
        let text =
            fs::read_to_string(&path).map_err(|e| format!("read {}: {e}", path.display()))?;
        port_of(&text).ok_or_else(|| format!("{} names no port", path.display()))
    }
}

/// The broker's port in a configuration of ours.
fn port_of(properties: &str) -> Option<u16> {
    let line = |line: &str| line.strip_prefix("advertised.listeners=").map(ToOwned::to_owned);
    properties.lines().find_map(line)?.rsplit(':').next()?.trim().parse().ok()
}

fn check_java() -> Result<(), String> {
    let mut java = Command::new("java");
    let output = java.arg("-version").output().map_err(|e| {
        format!("java cannot be run ({e}): Kafka's broker needs Java {JAVA_MIN} or later")
    })?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    match java_version(&text) {
        Some(version) if version >= JAVA_MIN => Ok(()),
        _ => {
            let first = text.lines().next().unwrap_or_default();
            Err(format!("Kafka's broker needs Java {JAVA_MIN} or later; `java -version`: {first}"))
        }
    }
}

/// The major version that `java -version` prints: `17.0.15` is 17, `1.8.0_402` is 8.
fn java_version(text: &str) -> Option<u32> {
    let quoted = text.split('"').nth(1)?;
    let mut parts = quoted.split(['.', '_', '-', '+']).map(|part| part.parse::<u32>().ok());
    match parts.next()?? {
        1 => parts.next()?,
        major => Some(major),
    }
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

fn free_port() -> Result<u16, String> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    bound.map(|address| address.port()).map_err(|e| format!("find a free port on loopback: {e}"))
}

/// Whether a Kafka broker answers there: it is asked which requests it knows.
fn answers(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(&API_VERSIONS)?;
        let mut head = [0; 8];
        stream.read_exact(&mut head)?;
        Ok(head[4..] == CORRELATION)
    };
    ask().unwrap_or(false)
}

const CORRELATION: [u8; 4] = *b"lane";
/// Length 10; request 18 (ApiVersions) in version 0; correlation id; no client id.
const API_VERSIONS: [u8; 14] = {
    let [a, b, c, d] = CORRELATION;
    [0, 0, 0, 10, 0, 18, 0, 0, a, b, c, d, 0xff, 0xff]
};

fn signal(pid: u32, which: &str) -> Result<(), String> {
    let mut kill = Command::new("kill");
    run(kill.args([which, &pid.to_string()]), "stop Kafka's process")
}

/// What a process was started with; none where there is no such process (a zombie included).
fn command_line(pid: u32) -> Result<Option<String>, String> {
    let mut ps = Command::new("ps");
    let output = ps
        .args(["-ww", "-o", "command=", "-p", &pid.to_string()])
        .output()
        .map_err(|e| format!("ps cannot be run ({e}): it tells whether Kafka runs"))?;
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok((!line.is_empty()).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn javas_version_is_the_number_that_people_say() {
        assert_eq!(java_version("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK"), Some(17));
        assert_eq!(java_version("java version \"1.8.0_402\""), Some(8));
        assert_eq!(java_version("openjdk version \"25-ea\""), Some(25));
        assert_eq!(java_version("command not found"), None);
    }

    #[test]
    fn the_port_is_read_back_from_the_configuration() {
        let text = PROPERTIES.replace("{port}", "12345").replace("{controller}", "12346");
        assert_eq!(port_of(&text), Some(12_345));
        assert_eq!(port_of("listeners=x"), None);
    }

    #[test]
    fn an_empty_folder_has_no_broker_and_needs_no_stop() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(status(dir.path()), Ok(None));
        assert_eq!(down(dir.path()), Ok(()));
    }

    #[test]
    fn a_process_id_of_somebody_else_is_not_the_broker() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().to_owned());
        fs::write(folder.pid_file(), std::process::id().to_string()).unwrap();
        assert_eq!(status(dir.path()), Ok(None));
        fs::write(folder.pid_file(), "soon").unwrap();
        assert!(status(dir.path()).unwrap_err().contains("holds no process id"));
    }
}
