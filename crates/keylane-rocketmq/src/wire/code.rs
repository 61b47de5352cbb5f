//! The numbers that name requests and answers. Those of the protocol that this crate uses, by the
//! protocol's names.

/// The version that requests carry: 5.3.3. From 4.9.4 (401) on a name server answers in strict JSON.
pub(crate) const VERSION: i32 = 479;

macro_rules! codes {
    ($($name:ident = $code:literal)*) => {
        $(pub(crate) const $name: i32 = $code;)*

        /// The protocol's name of a request, for error messages.
        pub(crate) fn name(code: i32) -> &'static str {
            match code {
                $($code => stringify!($name),)*
                _ => "REQUEST",
            }
        }
    };
}

codes! {
    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    GET_CONSUMER_CONNECTION_LIST = 203
    RESET_CONSUMER_CLIENT_OFFSET = 220
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
}

/// Answers.
pub(crate) mod answer {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;
    pub(crate) const FLUSH_DISK_TIMEOUT: i32 = 10;
    pub(crate) const SLAVE_NOT_AVAILABLE: i32 = 11;
    pub(crate) const FLUSH_SLAVE_TIMEOUT: i32 = 12;
    pub(crate) const TOPIC_NOT_EXIST: i32 = 17;
    pub(crate) const PULL_NOT_FOUND: i32 = 19;
    pub(crate) const PULL_RETRY_IMMEDIATELY: i32 = 20;
    pub(crate) const PULL_OFFSET_MOVED: i32 = 21;
    pub(crate) const QUERY_NOT_FOUND: i32 = 22;
    pub(crate) const SUBSCRIPTION_NOT_EXIST: i32 = 24;
    pub(crate) const SUBSCRIPTION_NOT_LATEST: i32 = 25;
    pub(crate) const SUBSCRIPTION_GROUP_NOT_EXIST: i32 = 26;
    pub(crate) const FLOW_CONTROL: i32 = 215;
}
