//! The Maven projects of other people's clients, below `benches/peers`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::flags::Broker;
use crate::outcome::{Ended, Failure, say};

/// Where the project of this broker's clients is.
pub(super) fn project(broker: Broker) -> PathBuf {
    crate::ci::root().join("benches").join("peers").join(broker.name())
}

/// Compiles the project with what it depends on, unless that was done from these very sources, and
/// gives the class path. All it makes is in the project's folder `target`.
pub(super) fn build(project: &Path) -> Ended<String> {
    let failed = |error| Failure::other(format!("build {}", project.display()), error);
    let target = project.join("target");
    let class_path = format!("{0}/classes:{0}/lib/*", target.display());
    // Written last: what it names is there, and whole.
    let stamp = target.join("built-from");
    let sources = sources(project).map_err(|error| failed(error.to_string()))?;
    if fs::read_to_string(&stamp).is_ok_and(|built| built == sources) {
        return Ok(class_path);
    }
    say(&format!("building {} with Maven", project.display()));
    let mut mvn = Command::new("mvn");
    mvn.args(["-B", "-q", "-f"]).arg(project.join("pom.xml"));
    mvn.args(["compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"]);
    let output = mvn.stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(format!("mvn cannot be run: {error}")))?;
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        return Err(failed(format!("mvn {}\n{printed}", output.status)));
    }
    fs::write(&stamp, sources).map_err(|error| failed(error.to_string()))?;
    Ok(class_path)
}

/// All that goes into a build: the text of the pom and of each class.
fn sources(project: &Path) -> std::io::Result<String> {
    let mut text = fs::read_to_string(project.join("pom.xml"))?;
    let mut folders = vec![project.join("src")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    for file in files {
        text.push_str(&fs::read_to_string(file)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_all_of_them_in_the_same_order() {
        let project = tempfile::tempdir().unwrap();
        let classes = project.path().join("src").join("peer");
        fs::create_dir_all(&classes).unwrap();
        fs::write(project.path().join("pom.xml"), "pom;").unwrap();
        fs::write(classes.join("B.java"), "b;").unwrap();
        fs::write(classes.join("A.java"), "a;").unwrap();
        assert_eq!(sources(project.path()).unwrap(), "pom;a;b;");
        assert!(sources(&classes).is_err());
    }
}
