//! The broker dies under load. `KEYLANE_KAFKA_RESTART` is a command (for `sh -c`) that kills and
//! restarts it; it disturbs every other test at the same broker, so this runs by itself.

use std::process::Command;
use std::time::Duration;

use super::{Filler, Stage, start, under_load, until, until_assigned};

#[test]
fn a_broker_that_is_killed_under_load_loses_nothing() {
    let Ok(restart) = std::env::var("KEYLANE_KAFKA_RESTART") else {
        println!("skipped: needs KEYLANE_KAFKA_RESTART, a command that kills and restarts it");
        return;
    };
    let Some(stage) = Stage::new("killed", 4, &[]) else { return };
    let source = || stage.broker.source().set("session.timeout.ms", "10000");
    let members: Vec<_> = (0..2)
        .map(|nth| {
            let recorder =
                if nth == 0 { stage.recorder.clone() } else { stage.recorder.another_member() };
            start(source(), &recorder, Duration::from_millis(1))
        })
        .collect();
    members.iter().for_each(|member| until_assigned(member, 2));
    let mut filler = Filler::new(&stage, 4, 500);
    under_load(&mut filler, || {
        let done = || members.iter().map(|member| member.metrics().succeeded).sum::<u64>();
        until("messages flow", || match done() {
            now if now > 1_000 => Ok(()),
            now => Err(now.to_string()),
        });
        let status = Command::new("sh").args(["-c", &restart]).status();
        assert!(status.is_ok_and(|status| status.success()), "the restart failed");
        // It goes on while there is load.
        let before = done();
        until("messages flow again", || match done() {
            now if now > before + 1_000 => Ok(()),
            now => Err(format!("{before}, {now}")),
        });
    });
    stage.until_committed(4);
    stage.verdict(members, filler.sent);
}
