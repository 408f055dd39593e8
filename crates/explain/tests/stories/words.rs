//! Words that must hold for every program and every host, whatever is not recorded of them.

use underspan_explain::Kind;
use underspan_model::State;

use crate::{handler, of, only};

#[test]
fn of_cpus_only_those_that_it_may_use_were_not_free() {
    let runnable = only(&of(handler(&[(State::Runnable, 500)])));
    assert_eq!(runnable.kind, Kind::Runnable);
    assert!(runnable.text.contains("no CPU that it may use was free"), "{}", runnable.text);
    for pin in ["taskset", "cpuset.cpus"] {
        assert!(runnable.advice.contains(pin), "{}", runnable.advice);
    }
}
