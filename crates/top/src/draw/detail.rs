//! One thread: what it did, and where it is.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::threads::bar;
use super::{bold, dim, heading, paint};
use crate::app::{App, Detail};
use crate::bar::{cut_frame, percent, short};
use crate::stack::Current;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &App, detail: &Detail) {
    let mut lines = about(app, detail, area.width);
    lines.push(Line::default());
    match &detail.stack {
        Some(stack) => where_it_is(stack, &mut lines, area.width),
        None => lines.push(Line::styled("reading its stack…", dim())),
    }
    let last = (lines.len() as u16).saturating_sub(area.height);
    frame.render_widget(Paragraph::new(lines).scroll((detail.scroll.min(last), 0)), area);
}

fn about(app: &App, detail: &Detail, width: u16) -> Vec<Line<'static>> {
    let Detail { pid, tid, .. } = *detail;
    let Some((process, thread)) = app.thread(pid, tid) else {
        return vec![Line::styled(format!("thread {tid} of process {pid} has ended"), bold())];
    };
    let who = format!("{} ({tid}) of {process} ({pid})  ", thread.thread);
    let since = short(thread.state_for_ns);
    let now = thread.now();
    let said = format!("{} for {since}: {}", now.name(), now.label());
    let mut lines = vec![
        Line::from(vec![Span::styled(who, bold()), Span::styled(said, paint(now))]),
        Line::from(bar(&thread.spent, width.into())),
    ];
    let mut states = Vec::new();
    for (share, ns) in thread.spent.largest_first() {
        states.push(Span::styled("■ ", paint(share)));
        states.push(Span::raw(format!(
            "{} {}% {}  ",
            share.name(),
            percent(ns, app.view.interval_ns),
            short(ns)
        )));
    }
    lines.push(Line::from(states));
    for request in app.view.requests.iter().filter(|request| request.tid == tid) {
        lines.push(Line::from(format!(
            "serves {} {} from {}, for {} ({})",
            request.method,
            request.path,
            request.peer,
            short(request.age_ns),
            request.request_id
        )));
    }
    lines
}

fn where_it_is(stack: &Current, lines: &mut Vec<Line<'static>>, width: u16) {
    let title = |text: &str| heading(text.to_owned(), true, width);
    let mut part = |name: &str, frames: &Result<Vec<String>, String>, none: &str| {
        lines.push(title(name));
        match frames {
            Ok(frames) if frames.is_empty() => lines.push(Line::styled(format!("  {none}"), dim())),
            Ok(frames) => lines.extend(frames.iter().map(|frame| indented(frame, width))),
            Err(why) => lines.push(Line::styled(format!("  {why}"), dim())),
        }
    };
    part("KERNEL, now", &stack.kernel, "it runs in user mode");
    part("PYTHON, now (innermost first)", &stack.python, "it runs no Python code");
    let Some(sampled) = &stack.sampled else {
        lines.push(title("NO STACK WAS TAKEN YET"));
        return;
    };
    let when = short(sampled.age_ns);
    let doing = if sampled.on_cpu { "it ran" } else { "it had waited" };
    let mut text = format!("TAKEN {when} AGO, when {doing}");
    if !sampled.truncated.is_empty() {
        text += &format!(" (incomplete: {})", sampled.truncated);
    }
    lines.push(title(&text));
    if sampled.frames.is_empty() {
        // A heading with nothing below it looks as if something had been cut off.
        lines.push(Line::styled("  nothing of this stack is known", dim()));
    }
    lines.extend(sampled.frames.iter().map(|frame| indented(frame, width)));
}

fn indented(frame: &str, width: u16) -> Line<'static> {
    Line::from(format!("  {}", cut_frame(frame, usize::from(width).saturating_sub(2))))
}
