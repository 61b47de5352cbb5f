//! Values that have a notation of their own.

use std::time::Duration;

use keylane_testkit::workload::Work;

/// The longest work: more is a slip of the keyboard.
const WORK_MAX: Duration = Duration::from_secs(3_600);

/// What the listener does with a message, within bounds.
pub(crate) fn work(text: &str) -> Result<Work, String> {
    let work: Work = text.parse().map_err(|error| format!("{error}"))?;
    let duration = work_duration(work);
    if work != Work::None && (duration.is_zero() || duration > WORK_MAX) {
        return Err("it takes more than nothing and at most an hour; for no work: none".to_owned());
    }
    Ok(work)
}

/// How long one message takes.
pub(crate) fn work_duration(work: Work) -> Duration {
    match work {
        Work::None => Duration::ZERO,
        Work::Sleep(duration) | Work::Spin(duration) => duration,
    }
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
    fn work_is_within_bounds() {
        assert_eq!(work("none"), Ok(Work::None));
        assert_eq!(work("sleep:1ms"), Ok(Work::Sleep(Duration::from_millis(1))));
        assert_eq!(work("spin:10us"), Ok(Work::Spin(Duration::from_micros(10))));
        for wrong in ["", "sleep", "sleep:", "sleep:0ms", "sleep:-1ms", "nap:1ms", "sleep:3601s"] {
            assert!(work(wrong).is_err(), "{wrong:?} was taken");
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
