//! Colours of boxes and of the text on them.

use underspan_model::{FrameKind, State};

use crate::label::Label;
use crate::sample::Counters;

/// 24-bit red, green, blue.
pub(super) type Rgb = u32;

const WHITE: Rgb = 0xff_ff_ff;
const BLACK: Rgb = 0x00_00_00;
/// Time spent waiting for something to do.
pub(super) const IDLE: Rgb = 0xd5_d5_d5;
/// All time, processes and threads.
pub(super) const GROUP: Rgb = 0xe9_e4_da;
/// Nothing changed, or nothing was counted.
pub(super) const NEUTRAL: Rgb = 0xf2_f2_f2;
/// More time than before.
const MORE: Rgb = 0xd6_28_28;
/// Less time than before.
const LESS: Rgb = 0x1d_5f_c4;

/// The colour of a box in which a thread was mostly in `state`: a state has one hue everywhere, and
/// Python, native and kernel functions are light, medium and dark shades of it.
pub(super) fn by_state(label: &Label, state: State) -> Rgb {
    let hue = state.colour();
    match label {
        Label::Root | Label::Process(_) | Label::Thread(..) => GROUP,
        Label::Function(function) => shade(function.kind, hue),
        Label::Truncated(_) | Label::NoStack | Label::NotSampled(_) => mix(hue, WHITE, 0.78),
        Label::State(_) | Label::Wait(..) => hue,
    }
}

fn shade(kind: FrameKind, hue: Rgb) -> Rgb {
    match kind {
        FrameKind::Python => mix(hue, WHITE, 0.62),
        FrameKind::Native => mix(hue, WHITE, 0.36),
        FrameKind::Kernel => mix(hue, BLACK, 0.08),
    }
}

/// A kind's shade of a state's hue, and what it means.
pub(super) fn shade_of(kind: FrameKind, state: State) -> (Rgb, &'static str) {
    let meaning = match kind {
        FrameKind::Python => "light: Python",
        FrameKind::Native => "medium: native",
        FrameKind::Kernel => "dark: kernel",
    };
    (shade(kind, state.colour()), meaning)
}

/// Red for more, blue for less, the stronger the greater the share of the picture that changed.
pub(super) fn by_change(change: f64, whole: f64) -> Rgb {
    if whole <= 0.0 {
        return NEUTRAL;
    }
    // A tenth of the picture is as red as it gets; the root makes small changes visible too.
    let strength = (change.abs() / whole * 10.0).clamp(0.0, 1.0).sqrt();
    mix(NEUTRAL, if change > 0.0 { MORE } else { LESS }, strength)
}

/// What a hardware counter tells, from good (blue) to bad (red).
pub(super) fn by_ipc(counters: Option<&Counters>) -> Rgb {
    // Below one instruction in two cycles a core mostly waits, above two it is well used.
    ramp(counters.and_then(Counters::ipc).map(|ipc| 1.0 - (ipc - 0.5) / 1.5))
}

/// See [`by_ipc`].
pub(super) fn by_cache_misses(counters: Option<&Counters>) -> Rgb {
    // Ten misses per thousand instructions keep a core waiting for memory most of the time.
    ramp(counters.and_then(Counters::cache_misses_per_kilo).map(|misses| misses / 10.0))
}

/// See [`by_ipc`].
pub(super) fn by_branch_misses(counters: Option<&Counters>) -> Rgb {
    // One costs some 15 to 20 cycles: ten per thousand instructions are as many again as it takes to run these.
    ramp(counters.and_then(Counters::branch_misses_per_kilo).map(|misses| misses / 10.0))
}

fn ramp(badness: Option<f64>) -> Rgb {
    let Some(badness) = badness else { return NEUTRAL };
    let badness = badness.clamp(0.0, 1.0) * 2.0 - 1.0;
    mix(NEUTRAL, if badness > 0.0 { MORE } else { LESS }, 0.15 + 0.75 * badness.abs())
}

/// `share` of `other` in `colour`.
fn mix(colour: Rgb, other: Rgb, share: f64) -> Rgb {
    let [_, r, g, b] = colour.to_be_bytes();
    let [_, x, y, z] = other.to_be_bytes();
    let channel =
        |a: u8, b: u8| (f64::from(a) * (1.0 - share) + f64::from(b) * share).round() as u8;
    u32::from_be_bytes([0, channel(r, x), channel(g, y), channel(b, z)])
}

/// Whether text on it is to be white: whichever of black and white has more contrast.
pub(super) fn is_dark(colour: Rgb) -> bool {
    let on_black = (luminance(colour) + 0.05) / 0.05;
    let on_white = 1.05 / (luminance(colour) + 0.05);
    on_white > on_black
}

/// Relative luminance, as WCAG 2 defines it.
fn luminance(colour: Rgb) -> f64 {
    let [_, r, g, b] = colour.to_be_bytes();
    let linear = |channel: u8| {
        let c = f64::from(channel) / 255.0;
        if c <= 0.040_45 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_can_be_read_on_every_box() {
        for state in State::ALL {
            for kind in FrameKind::ALL {
                let colour = shade(kind, state.colour());
                let text = if is_dark(colour) { 1.0 } else { 0.0 };
                let (light, dark) =
                    (f64::max(luminance(colour), text), luminance(colour).min(text));
                let contrast = (light + 0.05) / (dark + 0.05);
                assert!(contrast >= 4.5, "{state:?} {kind:?}: {contrast:.2}");
            }
        }
    }

    /// Grey is what is idle.
    #[test]
    fn known_states_are_not_grey() {
        for state in State::ALL.into_iter().filter(|state| *state != State::Other) {
            let [_, r, g, b] = shade(FrameKind::Python, state.colour()).to_be_bytes();
            let spread = r.max(g).max(b) - r.min(g).min(b);
            assert!(spread >= 30, "{state:?}: {r:02x} {g:02x} {b:02x}");
        }
    }

    #[test]
    fn kinds_of_frames_differ_in_lightness() {
        for state in State::ALL {
            let [python, native, kernel] =
                FrameKind::ALL.map(|kind| luminance(shade(kind, state.colour())));
            assert!(python > native && native > kernel, "{state:?}");
        }
    }
}
