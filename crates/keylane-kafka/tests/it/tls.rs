//! Through TLS, with a certificate that the broker has signed itself. `KEYLANE_KAFKA_TLS=host:port`
//! names its listener, `KEYLANE_KAFKA_CA` the certificate's file, beside `KEYLANE_KAFKA`; without
//! them every test that needs them says that it is skipped.

use std::time::{Duration, Instant};

use keylane_kafka::{KafkaProducer, KafkaSource, KafkaSourceBuilder, Record};
use keylane_source::QueueId;

use crate::member::{Member, commit};
use crate::real_broker::Broker;

const PATIENCE: Duration = Duration::from_secs(60);

/// A broker, and how it is reached through TLS.
struct Secured {
    broker: Broker,
    servers: String,
    certificate: String,
}

impl Secured {
    fn with_topic(test: &str) -> Option<Self> {
        let broker = Broker::with_topic(test, 1, &[])?;
        let named = |name: &str| std::env::var(name).ok();
        let (servers, certificate) = (named("KEYLANE_KAFKA_TLS"), named("KEYLANE_KAFKA_CA"));
        let (Some(servers), Some(certificate)) = (servers, certificate) else {
            println!("skipped: {test} needs KEYLANE_KAFKA_TLS=host:port and KEYLANE_KAFKA_CA=file");
            return None;
        };
        Some(Self { broker, servers, certificate })
    }

    fn source(&self, certificate: &str) -> KafkaSourceBuilder {
        KafkaSource::builder(&self.servers, &self.broker.topic)
            .subscribe([&self.broker.topic])
            .set("security.protocol", "ssl")
            .set("ssl.ca.location", certificate)
    }
}

#[test]
fn messages_and_commits_go_through_tls() {
    let Some(secured) = Secured::with_topic("tls") else { return };
    let (topic, queue) = (&secured.broker.topic, QueueId::new(&secured.broker.topic, 0));
    let producer = KafkaProducer::builder(&secured.servers)
        .set("security.protocol", "ssl")
        .set("ssl.ca.location", &secured.certificate)
        .build()
        .unwrap();
    for n in 0..10 {
        let payload = n.to_string();
        producer.send(Record::to(topic).payload(payload.as_bytes())).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    let mut member = Member::joined(secured.source(&secured.certificate), 1);
    member.until("all is read", |m| m.count() == 10);
    member.commit(commit(queue, 6, "beside")).unwrap();
    member.close().unwrap();
    let mut next = Member::joined(secured.source(&secured.certificate), 1);
    next.until("the rest is read", |m| m.count() == 4);
    assert_eq!(next.offsets(queue), [6, 7, 8, 9]);
    assert!(next.errors.is_empty(), "{:?}", next.errors);
    next.close().unwrap();
}

#[test]
fn a_broker_whose_certificate_is_not_trusted_is_named_with_the_reason() {
    let Some(secured) = Secured::with_topic("stranger") else { return };
    let folder = tempfile::tempdir().unwrap();
    let stranger = folder.path().join("stranger.pem");
    std::fs::write(&stranger, include_str!("tls/stranger.pem")).unwrap();
    let mut member = Member::new(secured.source(stranger.to_str().unwrap()));
    let start = Instant::now();
    let told = |m: &Member| m.errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    while !told(&member).iter().any(|text| text.contains("verify failed")) {
        assert!(start.elapsed() < PATIENCE, "{:?}", told(&member));
        member.poll(Duration::from_millis(50));
    }
    let all = told(&member);
    let text = all.iter().find(|text| text.contains("verify failed")).unwrap();
    let (group, servers) = (&secured.broker.topic, &secured.servers);
    assert!(text.starts_with(&format!("kafka group {group}: ssl://{servers}/")), "{text}");
    assert!(text.contains("ssl.ca.location"), "{text}");
    assert!(member.owned.is_empty());
    member.close().unwrap();
}

#[test]
fn a_certificate_that_is_not_there_is_named_when_the_source_is_built() {
    let (ssl, file) = (("security.protocol", "ssl"), ("ssl.ca.location", "/no/such.pem"));
    let source = KafkaSource::builder("127.0.0.1:1", "g").subscribe(["t"]);
    let source = source.set(ssl.0, ssl.1).set(file.0, file.1).build().unwrap_err().to_string();
    let producer = KafkaProducer::builder("127.0.0.1:1").set(ssl.0, ssl.1).set(file.0, file.1);
    let producer = producer.build().unwrap_err().to_string();
    for (text, what) in [(source, "client"), (producer, "producer")] {
        assert!(text.starts_with(&format!("create the Kafka {what}: ")), "{text}");
        assert!(text.contains("; ssl.ca.location is \"/no/such.pem\": No such file"), "{text}");
    }
}
