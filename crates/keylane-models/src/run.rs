//! Which models are run, each in a process of its own.
#![expect(clippy::print_stdout, reason = "it is a program that prints")]

use std::process::{Command, ExitCode, Output};
use std::time::Instant;

use keylane::models::{MODELS, Model, without};

/// The program.
pub(super) fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, transition) = match words[..] {
        [] => return all(),
        ["--model", name] => (name, None),
        ["--model", name, "--without", transition] => (name, Some(transition)),
        _ => return usage("--model NAME, or --model NAME --without TRANSITION"),
    };
    let Some(model) = MODELS.iter().find(|model| model.name == name) else {
        let names: Vec<_> = MODELS.iter().map(|model| model.name).collect();
        return usage(&format!("--model {name}: there are {}", names.join(", ")));
    };
    if let Some(transition) = transition {
        if !model.transitions.contains(&transition) {
            let known = model.transitions.join(", ");
            return usage(&format!("--without {transition}: {name} has {known}"));
        }
        without(transition);
    }
    let start = Instant::now();
    println!("{} orders in {:.1?}", model.check(), start.elapsed());
    ExitCode::SUCCESS
}

fn usage(what: &str) -> ExitCode {
    println!("{what}");
    ExitCode::from(2)
}

/// Each model, and each without each of its transitions.
fn all() -> ExitCode {
    let mut wrong = 0;
    for model in &MODELS {
        let output = process(model, None);
        let bound = model.preemptions.map_or(String::new(), |n| format!(", {n} preemptions"));
        if output.status.success() {
            println!("{:<8} {}{bound}: {}", model.name, said(&output.stdout), model.what);
        } else {
            wrong += 1;
            println!("{:<8} FAILED ({}): {}", model.name, output.status, model.what);
            println!("{}", String::from_utf8_lossy(&output.stderr));
        }
        for transition in model.transitions {
            let output = process(model, Some(transition));
            // Status 2 is an option that cannot work, which shows nothing.
            let fails = !output.status.success() && output.status.code() != Some(2);
            if fails {
                println!("         without \"{transition}\": {}", complaint(&output));
            } else {
                wrong += 1;
                println!("         NOT NOTICED without \"{transition}\": {}", said(&output.stdout));
            }
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn process(model: &Model, transition: Option<&str>) -> Output {
    let program = std::env::current_exe().expect("this program is somewhere");
    let mut command = Command::new(program);
    command.args(["--model", model.name]);
    if let Some(transition) = transition {
        command.args(["--without", transition]);
    }
    command.output().expect("this program can be run")
}

fn said(printed: &[u8]) -> String {
    String::from_utf8_lossy(printed).trim().to_owned()
}

/// What a panic said first.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
    let first = lines.nth(1).map(str::to_owned);
    first.unwrap_or_else(|| format!("{}", output.status))
}
