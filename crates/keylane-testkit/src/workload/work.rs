//! What a listener does with a message.

use std::fmt;
use std::hint;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

/// How a listener spends its time, written `none`, `sleep:1ms` or `spin:10us`.
///
/// ```
/// use std::time::Duration;
/// use keylane_testkit::workload::Work;
///
/// assert_eq!("spin:10us".parse(), Ok(Work::Spin(Duration::from_micros(10))));
/// "none".parse::<Work>()?.run();
/// # Ok::<(), keylane_testkit::workload::ParseWorkError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Work {
    /// Nothing.
    #[default]
    None,
    /// It waits, as for a database.
    Sleep(Duration),
    /// It computes.
    Spin(Duration),
}

impl Work {
    /// Does it.
    pub fn run(self) {
        match self {
            Self::None => {}
            Self::Sleep(time) => thread::sleep(time),
            Self::Spin(time) => {
                let begin = Instant::now();
                while begin.elapsed() < time {
                    hint::spin_loop();
                }
            }
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Sleep(time) => write!(f, "sleep:{}us", time.as_micros()),
            Self::Spin(time) => write!(f, "spin:{}us", time.as_micros()),
        }
    }
}

/// The text is not a [`Work`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseWorkError(String);

impl fmt::Display for ParseWorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "work \"{}\": expected none, sleep:TIME or spin:TIME (us, ms or s)", self.0)
    }
}

impl std::error::Error for ParseWorkError {}

impl FromStr for Work {
    type Err = ParseWorkError;

    fn from_str(text: &str) -> Result<Self, ParseWorkError> {
        let parsed = match text.split_once(':') {
            None if text == "none" => Some(Self::None),
            Some(("sleep", time)) => parse_time(time).map(Self::Sleep),
            Some(("spin", time)) => parse_time(time).map(Self::Spin),
            _ => None,
        };
        parsed.ok_or_else(|| ParseWorkError(text.to_owned()))
    }
}

fn parse_time(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let number = number.parse().ok()?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_written_and_read() {
        for (text, shown) in
            [("none", "none"), ("sleep:2ms", "sleep:2000us"), ("spin:1s", "spin:1000000us")]
        {
            let work: Work = text.parse().unwrap();
            assert_eq!(work.to_string(), shown);
            assert_eq!(shown.parse(), Ok(work));
        }
    }

    #[test]
    fn what_is_no_work_is_refused_with_the_text() {
        for text in [
            "",
            "sleep",
            "sleep:",
            "sleep:ms",
            "sleep:1",
            "sleep:1h",
            "nap:1ms",
            "spin:-1ms",
            "sleep:99999999999999999999s",
        ] {
            let error = text.parse::<Work>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("work \"{text}\": expected none, sleep:TIME or spin:TIME (us, ms or s)")
            );
        }
    }
}
