//! What a load says of itself, right and wrong.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Run, command};

/// Every field of the contract.
const CONTRACT: [&str; 20] = [
    "mode",
    "source",
    "shards",
    "queues",
    "keys",
    "messages",
    "delivered",
    "elapsed_s",
    "messages_per_s",
    "latency_us",
    "order_violations",
    "overlap_violations",
    "lost",
    "duplicates",
    "committed",
    "commit_violations",
    "in_flight_max",
    "cpu_s",
    "rss_peak_bytes",
    "seed",
];

#[track_caller]
fn assert_fields(object: &Value, expected: &Value) {
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&object[field], value, "{field} of {object}");
    }
}

fn clean() -> Value {
    json!({
        "order_violations": 0, "overlap_violations": 0, "lost": 0, "duplicates": 0,
        "committed": true, "commit_violations": 0, "other_violations": 0, "broken": [],
    })
}

#[test]
fn the_whole_file_of_flights_comes_out_right() {
    let run = Run::new("load --source memory --work none --shards 8 --json");
    let object = run.object();
    assert_eq!(run.status(), 0, "{}", run.errors());
    assert_fields(&object, &clean());
    assert_fields(
        &object,
        &json!({
            "mode": "key-sharded", "source": "memory", "shards": 8, "queues": 3, "keys": 4_043,
            "keyless": 2_512, "messages": 336_776, "delivered": 336_776, "seed": 1,
            "by_queue": [
                {"name": "EWR", "delivered": 120_835, "committed": 120_835, "end": 120_835},
                {"name": "JFK", "delivered": 111_279, "committed": 111_279, "end": 111_279},
                {"name": "LGA", "delivered": 104_662, "committed": 104_662, "end": 104_662},
            ],
            "flights": {
                "dep_delay_sum": 4_152_200, "balance_sum": 4_262_753, "balance_max": 7_711,
                "right": true,
            },
        }),
    );
    for field in CONTRACT {
        assert!(!object[field].is_null() || !cfg!(target_os = "linux"), "{field} is missing");
    }
    for percentile in ["p50", "p99", "p999", "max"] {
        assert!(object["latency_us"][percentile].is_u64(), "{percentile} is missing");
    }
}

#[test]
fn every_mode_keeps_its_guarantees_through_failures_and_panics() {
    for mode in ["key-sharded", "queue-locked", "concurrent"] {
        for batch in ["", "--batch 7"] {
            let arguments = format!(
                "load --json --mode {mode} --work none --queues 3 --keys 40 --skew 1.1 --shards 4 \
                 --messages 1500 --fail-rate 0.03 --panic-rate 0.02 --in-flight 200 {batch}"
            );
            let run = Run::new(&arguments);
            let object = run.object();
            assert_eq!(run.status(), 0, "{arguments}: {}", run.errors());
            assert_fields(&object, &clean());
            assert_fields(&object, &json!({"mode": mode, "delivered": 1_500, "keys": 40}));
            assert!(object["failed_attempts"].as_u64() > Some(0), "{arguments}");
            assert!(object["panics"].as_u64() > Some(0), "{arguments}");
            assert!(object["in_flight_max"].as_u64() <= Some(200), "{arguments}");
        }
    }
}

#[test]
fn a_broken_guarantee_is_status_1() {
    let broken = |what: &str| {
        let run = Run::new(&format!(
            "load --json --break {what} --work none --queues 2 --keys 5 --messages 20000"
        ));
        assert_eq!(run.status(), 1, "{what}: {}", run.errors());
        assert!(run.errors().contains("a guarantee was broken"), "{}", run.errors());
        run.object()
    };
    assert_fields(&broken("loss"), &json!({"lost": 1, "delivered": 19_999}));
    assert_fields(&broken("order"), &json!({"order_violations": 1, "lost": 0}));
    assert_fields(&broken("commit"), &json!({"order_violations": 0, "lost": 0}));
    assert!(broken("commit")["commit_violations"].as_u64() > Some(0));
}

#[test]
fn a_loss_among_the_flights_shows_in_the_balances_too() {
    let run = Run::new("load --json --break loss --source memory --work none --messages 30000");
    assert_eq!(run.status(), 1, "{}", run.errors());
    assert_fields(&run.object()["flights"], &json!({"right": false}));
}

#[test]
fn a_file_of_ones_own_is_consumed_and_named_queues_are_shown() {
    let folder = TempDir::new().unwrap();
    let rows = "who,where,what\nann,north,1\nbob,south,\"a, b\"\n,north,3\nann,,4\n";
    std::fs::write(folder.path().join("a.csv"), rows).unwrap();
    let arguments = "load --json --input a.csv --key who --queue where --work none";
    let output = command(arguments, &folder).output().unwrap();
    let run = Run { output };
    assert_eq!(run.status(), 0, "{}", run.errors());
    let object = run.object();
    assert_fields(&object, &clean());
    assert_fields(&object, &json!({"messages": 4, "keys": 2, "keyless": 1, "flights": null}));
    let names: Vec<_> = object["by_queue"].as_array().unwrap().iter().map(|q| &q["name"]).collect();
    assert_eq!(names, ["(empty)", "north", "south"]);
}

#[test]
fn people_get_a_table_and_a_report_that_needs_nothing_beside_it() {
    let folder = TempDir::new().unwrap();
    let arguments = "load --source memory --work none --messages 5000 --mode key-sharded";
    let run = Run { output: command(arguments, &folder).output().unwrap() };
    assert_eq!(run.status(), 0, "{}", run.errors());
    let table = String::from_utf8(run.output.stdout).unwrap();
    for part in ["5,000 in 3 queues", "✓ G1 order", "queue EWR", "report: ", "✓ balances"] {
        assert!(table.contains(part), "{part} is not in {table}");
    }
    let report = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert_eq!(report.matches("<svg").count(), 3);
    assert!(!report.contains(" src=") && !report.contains("<link"));
}
