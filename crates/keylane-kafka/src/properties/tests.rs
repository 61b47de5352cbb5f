use super::*;
use crate::config::KafkaSourceBuilder;
use crate::{KafkaProducer, KafkaSource};

fn builder() -> KafkaSourceBuilder {
    KafkaSource::builder("127.0.0.1:1", "g").subscribe(["t"])
}

fn properties(set: &[(&str, &str)]) -> Properties {
    let mut properties = Properties::default();
    for (name, value) in set {
        properties.set((*name).to_owned(), (*value).to_owned());
    }
    properties
}

fn rejected(builder: KafkaSourceBuilder) -> String {
    builder.options().unwrap_err().to_string()
}

#[cfg(not(feature = "tls"))]
#[test]
fn every_tls_setting_is_rejected_by_a_sentence_that_names_the_feature() {
    let by_value = [
        ("security.protocol", "ssl"),
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanism", "SCRAM-SHA-256"),
        ("sasl.mechanisms", "SCRAM-SHA-512"),
    ];
    // All that librdkafka's manual lists.
    let by_name = [
        "enable.ssl.certificate.verification",
        "https.ca.location",
        "https.ca.pem",
        "ssl.ca.certificate.stores",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.certificate.verify_cb",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.curves.list",
        "ssl.endpoint.identification.algorithm",
        "ssl.engine.id",
        "ssl.engine.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.providers",
        "ssl.sigalgs.list",
        "ssl_ca",
        "ssl_certificate",
        "ssl_engine_callback_data",
        "ssl_key",
    ];
    for (name, value) in by_value.into_iter().chain(by_name.map(|name| (name, "none"))) {
        let shown = match name {
            "ssl.key.password" | "ssl.keystore.password" | "ssl.key.pem" => "a secret".to_owned(),
            _ => format!("{value:?}"),
        };
        let sentence = format!(
            "{name} is {shown}: this build has no TLS; switch on the feature `tls` of \
             keylane-kafka"
        );
        assert_eq!(rejected(builder().set(name, value)), sentence);
        let producer = KafkaProducer::builder("127.0.0.1:1").set(name, value).build();
        assert_eq!(producer.unwrap_err().to_string(), sentence);
    }
    assert!(builder().set("security.protocol", "plaintext").options().is_ok());
    assert!(builder().set("security.protocol", "sasl_plaintext").options().is_ok());
    assert!(builder().set("sasl.mechanism", "PLAIN").options().is_ok());
}

#[test]
fn a_file_that_cannot_be_used_is_named_and_no_other_setting() {
    let set = [("ssl.ca.location", "/no/such.pem"), ("ssl.key.password", "secret")];
    let set = properties(&set);
    let named = |text: &str| set.name_files(Error::new(text)).to_string();
    let text = named("ssl.ca.location failed: a riddle");
    let start = "ssl.ca.location failed: a riddle; ssl.ca.location is \"/no/such.pem\": No such";
    assert!(text.starts_with(start), "{text}");
    assert_eq!(named("ssl.key.password failed"), "ssl.key.password failed");
}

#[test]
fn the_users_value_wins_over_our_default() {
    let value = |b: KafkaSourceBuilder| {
        b.client_config().get("fetch.queue.backoff.ms").map(ToOwned::to_owned)
    };
    assert_eq!(value(builder()).as_deref(), Some("10"));
    assert_eq!(value(builder().set("fetch.queue.backoff.ms", "7")).as_deref(), Some("7"));
}

#[test]
fn it_wins_under_another_name_of_the_property_too() {
    let config = KafkaProducer::builder("h:1").set("queue.buffering.max.ms", "7").client_config();
    let config = config.unwrap();
    assert_eq!(config.get("linger.ms"), None);
    assert_eq!(config.create_native_config().unwrap().get("linger.ms").as_deref(), Ok("7"));
}

#[test]
fn what_is_ours_is_rejected_however_it_is_spelled() {
    let reset = "where a queue starts without a commit, or outside its range, is the engine's \
                 start option";
    for name in ["topic.auto.offset.reset", "Auto.Offset.Reset", " auto.offset.reset\t"] {
        let text = rejected(builder().set(name, "latest"));
        assert_eq!(text, format!("{name} cannot be set: {reset}"));
    }
    let commits = "only finished watermarks are committed, and the engine decides when";
    for name in ["topic.enable.auto.commit", "topic.auto.commit.enable", "ENABLE.AUTO.COMMIT"] {
        assert_eq!(rejected(builder().set(name, "1")), format!("{name} cannot be set: {commits}"));
    }
}

#[test]
fn a_property_is_set_by_one_of_its_names() {
    let text = rejected(
        builder().set("max.partition.fetch.bytes", "1").set("fetch.message.max.bytes", "2"),
    );
    let both = "fetch.message.max.bytes and max.partition.fetch.bytes";
    assert_eq!(text, format!("{both} are one property: set one of them"));
    let producer = KafkaProducer::builder("h:1").set("acks", "1").set("topic.acks", "all");
    let text = producer.build().unwrap_err().to_string();
    assert_eq!(text, "acks and topic.acks are one property: set one of them");
}

#[test]
fn every_alias_is_one_of_librdkafkas() {
    for (alias, name) in ALIASES {
        // A value that is allowed for all of them.
        let value = if alias.starts_with("compression") { "gzip" } else { "1" };
        let native = ClientConfig::new().set(*alias, value).create_native_config().unwrap();
        assert_eq!(native.get(name).as_deref(), Ok(value), "{alias}");
    }
}

#[test]
fn tokens_and_tls_are_rejected_behind_spaces_too() {
    let text = rejected(builder().set("sasl.mechanism", " OAuthBearer"));
    assert_eq!(text, "sasl.mechanism is \" OAuthBearer\": token refresh is not supported");
    #[cfg(not(feature = "tls"))]
    assert!(rejected(builder().set("sasl.mechanisms", "\tscram-SHA-256")).contains("`tls`"));
}

#[test]
fn secrets_are_not_shown() {
    let text = rejected(builder().set("sasl.password", "hunter\0"));
    assert_eq!(text, "sasl.password holds a zero byte: a secret");
    let shown = format!("{:?}", properties(&[("client.id", "me"), ("sasl.password", "hunter")]));
    assert_eq!(shown, r#"{"client.id": "me", "sasl.password": a secret}"#);
}

#[test]
fn what_librdkafka_would_read_otherwise_is_rejected() {
    for value in ["+6000", "06000", "0x1770", "6000ms", "4294973296", "2147483648", "0", ""] {
        let text = rejected(builder().set("session.timeout.ms", value));
        let allowed = "allowed are milliseconds, 1 to 2147483647";
        assert_eq!(text, format!("session.timeout.ms is {value:?}: {allowed}"));
    }
    let options = builder().set("isolation.level", "READ_UNCOMMITTED").options().unwrap();
    assert!(!options.read_committed);
    assert!(builder().options().unwrap().read_committed);
}
