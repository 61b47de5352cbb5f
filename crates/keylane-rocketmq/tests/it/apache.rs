//! Apache's programs as processes of a test's own: a name server and a broker that may be killed, and
//! that keep locks for less than a minute; mqadmin; members that are Java's.
//!
//! Java and Maven are needed. Where they are missing, or a broker was not asked for with
//! `KEYLANE_ROCKETMQ`, tests say that they are skipped; with `CI=true` what is missing is a failure.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use keylane_rocketmq::Client;

use crate::real;

/// A start may take this long, on a machine that has other things to do.
const START: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);
/// What `cargo xtask brokers` starts, too.
const POM: &str = include_str!("../../../../xtask/src/brokers/rocketmq/pom.xml");
const NAMESRV: &str = include_str!("../../../../xtask/src/brokers/rocketmq/namesrv.properties");
const BROKER: &str = include_str!("../../../../xtask/src/brokers/rocketmq/broker.properties");
const JAVA_BEFORE_5: &str =
    include_str!("../../../../xtask/src/brokers/rocketmq/java-before-5.options");
const LOGBACK: &str = include_str!("../../../../xtask/src/brokers/rocketmq/logback.xml");

/// Says that a test is skipped, for this reason; a failure where nothing may be skipped.
pub(crate) fn skip(test: &str, why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test}: {why}");
    println!("skipped: {test}: {why}");
}

/// What the jars of this Maven project are, fetched or built once: by the pom's folder, the folder
/// that they go to, and the goals.
fn jars(pom: &Path, lib: &Path, goals: &[&str]) -> Result<(), String> {
    let mut mvn = Command::new("mvn");
    mvn.args(["-B", "-q", "-f"]).arg(pom).args(goals).arg("dependency:copy-dependencies");
    mvn.arg(format!("-DoutputDirectory={}", lib.display())).stdin(Stdio::null());
    let output = mvn.output().map_err(|error| format!("mvn cannot be run: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if output.status.success() { Ok(()) } else { Err(format!("mvn: {printed}")) }
}

/// A folder for what tests keep from run to run.
fn kept(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Where Apache's jars are.
fn apache() -> Result<&'static Path, String> {
    static LIB: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let fetched = LIB.get_or_init(|| {
        let folder = kept(&format!("apache-{}", real::version()));
        let pom = folder.join("pom.xml");
        fs::write(&pom, POM.replace("{version}", &real::version())).unwrap();
        jars(&pom, &folder.join("lib"), &[]).map(|()| folder.join("lib"))
    });
    fetched.as_deref().map_err(Clone::clone)
}

/// The class path of the members that are Java's; see `benches/peers/rocketmq`.
pub(crate) fn peers() -> Result<&'static str, String> {
    static CLASS_PATH: OnceLock<Result<String, String>> = OnceLock::new();
    let built = CLASS_PATH.get_or_init(|| {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/peers/rocketmq");
        let target = project.join("target");
        jars(&project.join("pom.xml"), &target.join("lib"), &["compile"])?;
        Ok(format!("{0}/classes:{0}/lib/*", target.display()))
    });
    built.as_deref().map_err(Clone::clone)
}

/// A Java process that writes nothing into the user's folder.
pub(crate) fn java(class_path: &str, class: &str) -> Command {
    let home = kept("java");
    let mut java = Command::new("java");
    java.args(["-Xms32m", "-Xmx512m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC"]);
    java.arg(format!("-Duser.home={}", home.display()));
    java.args(["-cp", class_path, class]).stdin(Stdio::null());
    java
}

/// A name server and a broker of a test's own. They end with it.
pub(crate) struct Apache {
    folder: PathBuf,
    lib: &'static Path,
    lease: Duration,
    port: u16,
    name_server: Child,
    broker: Child,
    /// One at a time: two slow cores have enough to do with one.
    _alone: MutexGuard<'static, ()>,
}

impl Apache {
    /// Started, with locks that the broker takes for given up after `lease`. `None`: skipped.
    pub(crate) fn start(test: &str, lease: Duration) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        if !real::is_there(test) {
            return None;
        }
        let lib = match apache() {
            Ok(lib) => lib,
            Err(why) => {
                skip(test, &why);
                return None;
            }
        };
        // Poisoned by a test that has failed: the next one can go on.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = kept(&format!("broker-{}", std::process::id())).join(test);
        let conf = folder.join("conf");
        fs::create_dir_all(&conf).unwrap();
        for name in ["namesrv", "broker", "tools"] {
            fs::write(conf.join(format!("logback_{name}.xml")), LOGBACK).unwrap();
        }
        let port = free_ports(1);
        let ports = free_ports(4);
        for (name, text) in [("namesrv", NAMESRV), ("broker", BROKER)] {
            let text = text
                .replace("{home}", &folder.display().to_string())
                .replace("{namesrv}", &port.to_string())
                .replace("{broker}", &(ports + 2).to_string())
                .replace("{ha}", &(ports + 3).to_string());
            // What was acknowledged should be there after a kill; 5 s are the default.
            let text = format!("{text}\nflushConsumerOffsetInterval=100\n");
            fs::write(folder.join(format!("{name}.properties")), text).unwrap();
        }
        let name_server = spawn(&folder, lib, lease, "namesrv", "NamesrvStartup");
        let address = (Ipv4Addr::LOCALHOST, port);
        // A broker that finds no name server tries again only after half a minute.
        wait("the name server listens", || std::net::TcpStream::connect(address).is_ok());
        let broker = spawn(&folder, lib, lease, "broker", "BrokerStartup");
        let apache = Self { folder, lib, lease, port, name_server, broker, _alone: alone };
        apache.wait();
        Some(apache)
    }

    /// What clients take as their name server.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the broker as a crash would.
    pub(crate) fn kill(&mut self) {
        self.broker.kill().unwrap();
        self.broker.wait().unwrap();
    }

    /// Starts it again, and waits until a route answers.
    pub(crate) fn restart(&mut self) {
        self.broker = spawn(&self.folder, self.lib, self.lease, "broker", "BrokerStartup");
        self.wait();
    }

    /// The operator's tool, with these arguments.
    pub(crate) fn mqadmin(&self, arguments: &[&str]) {
        let class_path = self.lib.join("*");
        let class = "org.apache.rocketmq.tools.command.MQAdminStartup";
        let mut mqadmin = java(&class_path.display().to_string(), class);
        mqadmin.env("ROCKETMQ_HOME", &self.folder);
        mqadmin.arg(arguments[0]).args(["-n", &self.address()]).args(&arguments[1..]);
        let output = mqadmin.output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
    }

    fn wait(&self) {
        let client = Client::new([self.address()]).unwrap();
        wait("the broker has a route", || client.route("DefaultCluster").is_ok());
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        for child in [&mut self.broker, &mut self.name_server] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < START, "not so after {START:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

fn spawn(folder: &Path, lib: &Path, lease: Duration, name: &str, class: &str) -> Child {
    let log = fs::File::create(folder.join(format!("{name}.log"))).unwrap();
    let mut java = Command::new("java");
    java.args(["-Xms64m", "-Xmx384m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC"]);
    java.arg(format!("-Duser.home={}", folder.display()));
    java.arg(format!("-Drocketmq.home.dir={}", folder.display()));
    java.arg(format!("-Drocketmq.broker.rebalance.lockMaxLiveTime={}", lease.as_millis()));
    if real::is_before_5() {
        java.args(JAVA_BEFORE_5.lines());
    }
    java.arg("-cp").arg(lib.join("*")).arg(format!("org.apache.rocketmq.{name}.{class}"));
    java.arg("-c").arg(folder.join(format!("{name}.properties")));
    java.current_dir(folder).stdin(Stdio::null());
    java.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

/// The first of this many neighbouring ports that are free on loopback.
fn free_ports(count: u16) -> u16 {
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    (0..100)
        .map(|_| bind(0).unwrap().local_addr().unwrap().port())
        .find(|first| (*first..first.saturating_add(count)).all(|port| bind(port).is_ok()))
        .unwrap()
}
