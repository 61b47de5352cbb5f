//! An Apache Kafka broker for tests: one KRaft node on loopback, without Docker.
//!
//! The jars come from the Maven registry through the ordinary `mvn` client, once, and every broker
//! shares them. Everything else lives in a broker's own folder (data, configuration, certificate,
//! log, process id). [`down`] keeps the data, so that [`up`] after it is a restart; for an empty
//! broker delete the folder.
//!
//! It answers in plain text and, on a port of its own, through TLS, with a certificate that it has
//! signed itself.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{maven, remove};

const POM: &str = include_str!("kafka/pom.xml");
const PROPERTIES: &str = include_str!("kafka/server.properties");
/// A cluster's id is 16 bytes in base64: "keylane-broker-0".
const CLUSTER_ID: &str = "a2V5bGFuZS1icm9rZXItMA";
const JAVA_MIN: u32 = 17;
/// Of the file with the broker's key, which is worth nothing: Java wants one.
const PASSWORD: &str = "keylane";
/// Java's own tool for certificates: it comes with every Java, its launcher does not.
const KEYTOOL: &str = "java.base/sun.security.tools.keytool.Main";
const START_TIMEOUT: Duration = Duration::from_secs(300);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A broker that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    /// What a client takes as `bootstrap.servers`.
    pub(crate) servers: String,
    /// The same through TLS; none where the folder was configured before there was that.
    pub(crate) tls: Option<Tls>,
    /// The broker's process.
    pub(crate) pid: u32,
}

/// Where a broker answers through TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tls {
    /// What a client takes as `bootstrap.servers`, with `security.protocol` `ssl`.
    pub(crate) servers: String,
    /// What it takes as `ssl.ca.location`.
    pub(crate) certificate: PathBuf,
}

/// Starts the broker in `dir`, with the jars in `jars`, or finds the one that runs there, and waits
/// until it answers.
///
/// # Errors
///
/// A sentence: what is missing (Java, Maven), or what failed and where its log lies.
pub(crate) fn up(dir: &Path, jars: &Path) -> Result<Running, String> {
    if let Some(running) = status(dir)? {
        return Ok(running);
    }
    let made = |dir: &Path| -> Result<PathBuf, String> {
        fs::create_dir_all(dir).map_err(|e| format!("create {}: {e}", dir.display()))?;
        fs::canonicalize(dir).map_err(|e| format!("{}: {e}", dir.display()))
    };
    let (folder, jars) = (Folder(made(dir)?), Jars(made(jars)?));
    check_java()?;
    jars.fetch()?;
    folder.configure(&jars)?;
    folder.start(&jars)
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

/// Throws away what the stopped broker of `dir` stored. Its configuration goes first: without it
/// [`up`] formats the folder anew.
///
/// # Errors
///
/// It could not be removed.
pub(crate) fn empty(dir: &Path) -> Result<(), String> {
    let folder = Folder(dir.to_owned());
    match fs::remove_file(folder.properties()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("remove {}: {error}", folder.properties().display()));
        }
        _ => {}
    }
    remove(&folder.data())
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
    folder.running(pid).map(Some)
}

/// The folder with Kafka's jars.
struct Jars(PathBuf);

impl Jars {
    fn fetch(&self) -> Result<(), String> {
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

    fn java(&self, megabytes: u32) -> Command {
        let mut java = Command::new("java");
        java.args(["-Xms64m", &format!("-Xmx{megabytes}m"), "-XX:+UseSerialGC"]);
        java.args(["-Dlog4j2.level=WARN", "-cp"]).arg(self.0.join("lib").join("*"));
        java
    }
}

/// The folder that everything else of one broker lives in.
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

    fn keystore(&self) -> PathBuf {
        self.0.join("tls.p12")
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn certificate(&self) -> PathBuf {
        self.0.join("tls.pem")
    }

    /// Ports are chosen once and kept: a restarted broker is where its clients look for it.
    fn configure(&self, jars: &Jars) -> Result<(), String> {
        if self.properties().exists() {
            return Ok(());
        }
        self.make_certificate()?;
        let [broker, tls, controller] = free_ports()?;
        let text = PROPERTIES
            .replace("{port}", &broker.to_string())
            .replace("{tls}", &tls.to_string())
            .replace("{controller}", &controller.to_string())
            .replace("{keystore}", &self.keystore().display().to_string())
            .replace("{password}", PASSWORD)
            .replace("{data}", &self.data().display().to_string());
        fs::write(self.0.join("new.properties"), text).map_err(|e| format!("write: {e}"))?;
        let mut format = jars.java(128);
        format.current_dir(&self.0);
        format.args(["kafka.tools.StorageTool", "format", "--ignore-formatted"]);
        format.args(["-t", CLUSTER_ID, "-c"]).arg(self.0.join("new.properties"));
        run(&mut format, "Kafka's storage is formatted with Java")?;
        fs::rename(self.0.join("new.properties"), self.properties())
            .map_err(|e| format!("rename the configuration: {e}"))
    }

    fn make_certificate(&self) -> Result<(), String> {
        // What an attempt before this one may have left.
        let _ = fs::remove_file(self.keystore());
        let keytool = |arguments: &[&str]| {
            let mut keytool = Command::new("java");
            keytool.args(["-m", KEYTOOL]).args(arguments).args(["-alias", "broker"]);
            keytool.args(["-storepass", PASSWORD, "-keystore"]).arg(self.keystore());
            keytool
        };
        let mut make = keytool(&["-genkeypair", "-storetype", "PKCS12", "-keyalg", "EC"]);
        make.args(["-groupname", "secp256r1", "-validity", "3650", "-dname", "CN=127.0.0.1"]);
        run(make.args(["-ext", "san=ip:127.0.0.1,dns:localhost"]), "make a key with Java")?;
        let mut export = keytool(&["-exportcert", "-rfc"]);
        export.arg("-file").arg(self.certificate());
        run(&mut export, "write the broker's certificate with Java")
    }

    fn start(&self, jars: &Jars) -> Result<Running, String> {
        let log = fs::File::create(self.log()).map_err(|e| format!("create the log: {e}"))?;
        let errors = log.try_clone().map_err(|e| format!("share the log: {e}"))?;
        let mut broker = jars.java(256);
        broker.arg("kafka.Kafka").arg(self.properties()).current_dir(&self.0);
        // A group of its own: an interrupt at the terminal does not reach it.
        broker.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let mut child = broker.spawn().map_err(|e| format!("start java: {e}"))?;
        fs::write(self.pid_file(), child.id().to_string())
            .map_err(|e| format!("write {}: {e}", self.pid_file().display()))?;
        let running = self.running(child.id())?;
        let deadline = Instant::now() + START_TIMEOUT;
        while !answers(&running.servers) {
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
        Ok(running)
    }

    /// What the configuration says of the broker that runs as this process.
    fn running(&self, pid: u32) -> Result<Running, String> {
        let path = self.properties();
        let text =
            fs::read_to_string(&path).map_err(|e| format!("read {}: {e}", path.display()))?;
        let port = port_of(&text, "PLAINTEXT");
        let port = port.ok_or_else(|| format!("{} names no port", path.display()))?;
        let tls = port_of(&text, "TLS")
            .map(|port| Tls { servers: address(port), certificate: self.certificate() });
        Ok(Running { servers: address(port), tls, pid })
    }
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// The port of one of the broker's listeners in a configuration of ours.
fn port_of(properties: &str, listener: &str) -> Option<u16> {
    let mut lines = properties.lines();
    let all = lines.find_map(|line| line.strip_prefix("advertised.listeners="))?;
    let one = all.split(',').find_map(|one| one.strip_prefix(listener)?.strip_prefix("://"))?;
    one.rsplit(':').next()?.trim().parse().ok()
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

/// Ports that nobody listens at. Below those that the system gives to whoever asks for any: while
/// the broker is down nobody else is to find its port free.
fn free_ports<const N: usize>() -> Result<[u16; N], String> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    let start = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap_or(0);
    let ports = (0..COUNT).map(|n| FIRST + (start + n) % COUNT);
    // Held until all are found, so that none is found twice.
    let bound: Vec<_> = ports
        .filter_map(|port| Some((port, TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?)))
        .take(N)
        .collect();
    let ports: Vec<_> = bound.iter().map(|(port, _)| *port).collect();
    ports.try_into().map_err(|_| "there are no free ports on loopback".to_owned())
}

/// Whether a Kafka broker answers there: it is asked which requests it knows.
fn answers(servers: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let address = servers.parse::<SocketAddr>().map_err(std::io::Error::other)?;
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
        let text = PROPERTIES.replace("{port}", "12345").replace("{tls}", "12346");
        assert_eq!(port_of(&text, "PLAINTEXT"), Some(12_345));
        assert_eq!(port_of(&text, "TLS"), Some(12_346));
        let plain = "advertised.listeners=PLAINTEXT://127.0.0.1:9092";
        assert_eq!((port_of(plain, "PLAINTEXT"), port_of(plain, "TLS")), (Some(9_092), None));
        assert_eq!(port_of("listeners=x", "PLAINTEXT"), None);
    }

    #[test]
    fn free_ports_are_different_and_below_those_that_the_system_gives_out() {
        let mut ports = free_ports::<3>().unwrap();
        ports.sort_unstable();
        assert!(ports[0] < ports[1] && ports[1] < ports[2], "{ports:?}");
        assert!((20_000..30_000).contains(&ports[0]) && ports[2] < 30_000, "{ports:?}");
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
