//! Values that have a notation of their own.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The longest work: more is a slip of the keyboard.
const WORK_MAX: Duration = Duration::from_secs(3_600);

/// What the listener does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing.
    None,
    /// Sleeps, as a call of a database or a service would.
    Sleep(Duration),
    /// Computes, for as long.
    Spin(Duration),
}

impl Work {
    /// How long one message takes.
    pub(crate) fn duration(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Sleep(duration) | Self::Spin(duration) => duration,
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            Some(("sleep", duration)) => work_duration(duration).map(Self::Sleep),
            Some(("spin", duration)) => work_duration(duration).map(Self::Spin),
            _ => Err("it is none, sleep:DURATION or spin:DURATION, as in sleep:1ms".to_owned()),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Sleep(duration) => write!(f, "sleep:{duration:?}"),
            Self::Spin(duration) => write!(f, "spin:{duration:?}"),
        }
    }
}

fn work_duration(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if duration.is_zero() || duration > WORK_MAX {
        return Err(format!("{text} is outside of 1ns to 1h; for no work at all: none"));
    }
    Ok(duration)
}

/// A number and its unit: `ns`, `us`, `ms`, `s` or `m`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let nanos: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        _ => return Err(format!("{text:?} is not a duration: a number and ns, us, ms, s or m")),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} does not begin with a whole number"))?;
    let nanos = number.checked_mul(nanos).ok_or_else(|| format!("{text:?} is too long"))?;
    Ok(Duration::from_nanos(nanos))
}

/// A count; `_` may stand between digits.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    let number: u64 = text
        .replace('_', "")
        .parse()
        .map_err(|_| "it is a whole number, as in 10_000".to_owned())?;
    if number == 0 { Err("it is at least 1".to_owned()) } else { Ok(number) }
}

/// A share of messages that fail: up to nine in ten, since a run in which everything fails never
/// ends.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    within(text, 0.0, 0.9)
}

/// The exponent of a Zipf distribution.
pub(crate) fn exponent(text: &str) -> Result<f64, String> {
    within(text, 0.0, 10.0)
}

/// The share of messages that one key has.
pub(crate) fn key_share(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1.0)
}

/// Messages per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    within(text, 0.001, 1e9)
}

fn within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "it is a number".to_owned())?;
    // Written so that NaN is outside.
    if number >= low && number <= high {
        Ok(number)
    } else {
        Err(format!("it is within {low}..={high}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_has_a_notation() {
        let parse = |text: &str| text.parse::<Work>();
        assert_eq!(parse("none"), Ok(Work::None));
        assert_eq!(parse("sleep:1ms"), Ok(Work::Sleep(Duration::from_millis(1))));
        assert_eq!(parse("spin:10us"), Ok(Work::Spin(Duration::from_micros(10))));
        assert_eq!(parse("sleep:2s"), Ok(Work::Sleep(Duration::from_secs(2))));
        for wrong in [
            "",
            "sleep",
            "sleep:",
            "sleep:1",
            "sleep:ms",
            "sleep:0ms",
            "sleep:-1ms",
            "nap:1ms",
            "sleep:61m",
            "sleep:99999999999999999999s",
            "sleep:99999999999999999s",
            "none:1ms",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn counts_and_shares_have_bounds() {
        assert_eq!(count("10_000"), Ok(10_000));
        for wrong in ["0", "-1", "1.5", "", "99999999999999999999"] {
            assert!(count(wrong).is_err(), "{wrong:?} was taken");
        }
        assert_eq!(share("0.25"), Ok(0.25));
        for wrong in ["1", "-0.1", "NaN", "inf", "x"] {
            assert!(share(wrong).is_err(), "{wrong:?} was taken");
        }
    }
}
