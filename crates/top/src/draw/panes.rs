//! Requests in flight, and who keeps others waiting.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use underspan_model::State;

use super::{colour, first_row, heading, selected};
use crate::app::{App, Pane};
use crate::bar::{cut, cut_middle, short};

pub(super) fn requests(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let active = app.pane == Pane::Requests;
    let text = format!("IN FLIGHT ({})", app.view.requests.len());
    let mut lines = vec![heading(text, active, area.width)];
    let height = usize::from(area.height).saturating_sub(1);
    let first = first_row(app.request, height, app.view.requests.len());
    let path = usize::from(area.width).saturating_sub(55).max(12);
    for (index, request) in app.view.requests.iter().enumerate().skip(first).take(height) {
        let style = if active && index == app.request { selected() } else { Style::new() };
        let what = match request.method.as_str() {
            "" => format!("from {}", request.peer),
            method => format!("{method} {}", request.path),
        };
        let (now, since) = match request.state {
            Some(state) => (state.name(), short(request.state_for_ns)),
            None => ("gone", String::new()),
        };
        let paint = request.state.map_or(Style::new(), colour);
        let tid = format!(" ({})", request.tid);
        let who = cut_middle(&request.thread, 26 - tid.len()) + &tid;
        lines.push(Line::from(vec![
            Span::styled(format!("{:>7}  ", short(request.age_ns)), style),
            Span::styled(format!("{:<path$} ", cut(&what, path)), style),
            Span::styled(format!("{now:<11}"), style.patch(paint)),
            Span::styled(format!("{since:>6}  {who}"), style),
        ]));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

pub(super) fn culprits(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let active = app.pane == Pane::Culprits;
    let mut lines = vec![heading("KEPT OTHERS WAITING".to_owned(), active, area.width)];
    let height = usize::from(area.height).saturating_sub(1);
    let first = first_row(app.culprit, height, app.view.culprits.len());
    for (index, culprit) in app.view.culprits.iter().enumerate().skip(first).take(height) {
        let style = if active && index == app.culprit { selected() } else { Style::new() };
        let state: State = culprit.fault.state();
        let threads = if culprit.victims == 1 { "thread" } else { "threads" };
        let blocked = short(culprit.blocked_ns);
        let text =
            format!(" {} ({}) of {} {}", culprit.thread, culprit.tid, culprit.process, culprit.pid);
        let room = usize::from(area.width).saturating_sub(46);
        lines.push(Line::from(vec![
            Span::styled(format!("{blocked:>7}  "), style),
            Span::styled(format!("of {:>3} {threads:<8}", culprit.victims), style),
            Span::styled(format!(" {:<16}", culprit.fault.label()), style.patch(colour(state))),
            Span::styled(cut(&text, room), style),
        ]));
    }
    if app.view.culprits.is_empty() {
        lines.push(Line::from("  nobody"));
    }
    frame.render_widget(Paragraph::new(lines), area);
}
