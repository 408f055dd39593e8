//! Where one request's time went, who is to blame, what to change.
//!
//! Pure functions: a request, its spans and the rows around it go in, findings come out. No I/O, no
//! clocks, and no order of the rows that would matter. A culprit is named only where rows show it;
//! one false accusation costs more than ten unknowns.

mod case;
mod compare;
mod evidence;
mod explanation;
mod finding;
mod interval;
mod losses;
mod place;
mod relay;
mod rules;
mod server;
mod socket;
mod spans;
mod standing;
mod window;
pub mod words;

pub use compare::{CauseChange, Comparison, RouteChange, Summary, compare};
pub use evidence::{Evidence, Process};
pub use explanation::{Explanation, Unknown, explain};
pub use finding::{
    Culprit, Finding, INTERFERENCE, Kind, PROOF, Part, Relation, RowRef, Threshold, WORK,
};
pub use place::Place;
pub use relay::{PASSED_ON_NS, Relay};
pub use rules::Circumstance;
pub use socket::{PeerRequest, SocketWait};
pub use spans::{Match, SpanView};
pub use standing::Standing;
