//! Colours, or none.

use anstyle::{AnsiColor, Color, RgbColor, Style};
use underspan_model::State;

/// Paints text, or leaves it plain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ink {
    colour: bool,
}

impl Ink {
    pub(crate) fn new(colour: bool) -> Self {
        Ink { colour }
    }

    pub(crate) fn is_plain(self) -> bool {
        !self.colour
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.paint(AnsiColor::Green.on_default(), text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.paint(AnsiColor::Red.on_default().bold(), text)
    }

    pub(crate) fn warn(self, text: &str) -> String {
        self.paint(AnsiColor::Yellow.on_default(), text)
    }

    /// In the colour of a part of a request: a state's own, or a queue's.
    pub(crate) fn part(self, part: &str, text: &str) -> String {
        let rgb = match part {
            "accept_queue" => 0xff_8a_65,
            "handoff" => 0xff_52_52,
            "handler" => 0x4c_af_50,
            _ => State::from_name(part).unwrap_or(State::Other).colour(),
        };
        let [_, red, green, blue] = u32::to_be_bytes(rgb);
        let colour = Color::Rgb(RgbColor(red, green, blue));
        self.paint(Style::new().fg_color(Some(colour)), text)
    }

    fn paint(self, style: Style, text: &str) -> String {
        if self.colour && !text.is_empty() {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }
}
