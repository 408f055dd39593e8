//! What the terminal shows: a function of [`App`], and of the terminal's size.

mod detail;
mod help;
mod panes;
mod threads;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use underspan_model::State;

use crate::app::App;
use crate::bar::{clock, count, cut, percent};
use crate::spent::{Share, Spent};
use crate::view::View;

/// Less than this is no screen.
const LEAST: (u16, u16) = (40, 8);

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        frame.render_widget(Paragraph::new("the terminal is too small"), area);
        return;
    }
    let [header, body, footer] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)])
            .areas(area);
    frame.render_widget(Paragraph::new(head(app, header.width.into())), header);
    match &app.detail {
        Some(detail) => detail::draw(frame, body, app, detail),
        None => main(frame, body, app),
    }
    frame.render_widget(Paragraph::new(foot(app)), footer);
    if app.help {
        help::draw(frame, area);
    }
}

fn main(frame: &mut Frame<'_>, area: Rect, app: &App) {
    // A heading and at least a line each, as far as there is room; threads have the rest.
    let wanted = |rows: usize, most: u16| 1 + (rows.max(1) as u16).min(most);
    let requests = wanted(app.view.requests.len(), (area.height / 5).max(1));
    let culprits = wanted(app.view.culprits.len(), (area.height / 6).max(1));
    let [threads, requests, culprits] = Layout::vertical([
        Constraint::Min(4),
        Constraint::Length(requests),
        Constraint::Length(culprits),
    ])
    .areas(area);
    threads::draw(frame, threads, app);
    panes::requests(frame, requests, app);
    panes::culprits(frame, culprits, app);
}

fn head(app: &App, width: usize) -> Vec<Line<'static>> {
    let view = &app.view;
    // Before what may be cut off.
    let lost = match view.cost.lost {
        0 => String::new(),
        lost => format!("{} lost, ", count(lost, "event", "events")),
    };
    let left = format!(
        "underspan top  {}  {lost}{}, {}, {} in flight",
        view.host,
        count(view.processes.len() as u64, "process", "processes"),
        count(view.threads() as u64, "thread", "threads"),
        view.requests.len()
    );
    let right = cost(view);
    let room = width.saturating_sub(right.chars().count() + 1);
    let left = cut(&left, room);
    let gap = room.saturating_sub(left.chars().count()) + 1;
    let first = Line::from(vec![
        Span::styled(left, bold()),
        Span::raw(" ".repeat(gap)),
        Span::styled(right, dim()),
    ]);
    vec![first, legend(view, width)]
}

/// What watching costs, in % of a CPU, and the time.
fn cost(view: &View) -> String {
    let share = |ns: u64| match percent(ns, view.interval_ns) {
        share if share.is_empty() => "0".to_owned(),
        share => share,
    };
    let bpf = view.cost.bpf_ns.map_or_else(|| "?".to_owned(), share);
    let memory = view.cost.rss_bytes >> 20;
    format!("cost {}%+{bpf}% {memory}MB  {}", share(view.cost.cpu_ns), clock(view.time))
}

/// What took the most, all threads together, in their colours.
fn legend(view: &View, width: usize) -> Line<'static> {
    let mut all = Spent::default();
    view.processes.iter().for_each(|process| all += process.spent);
    let mut spans = Vec::new();
    let mut used = 0;
    for (share, ns) in all.largest_first() {
        let text = format!("{} {}%", share.name(), percent(ns, all.ledger.total()));
        used += text.chars().count() + 4;
        if used > width {
            break;
        }
        spans.push(Span::styled("■ ", paint(share)));
        spans.push(Span::raw(format!("{text}  ")));
    }
    Line::from(spans)
}

fn foot(app: &App) -> Line<'static> {
    let paused = if app.paused { "PAUSED  " } else { "" };
    if app.typing || !app.order.filter.is_empty() {
        let cursor = if app.typing { "_" } else { "  (Esc clears)" };
        return Line::from(format!("{paused}/{}{cursor}", app.order.filter));
    }
    let keys = match app.detail {
        Some(_) => "Esc back  ↑↓ scroll  p pause  ? help  q quit",
        None => "Enter look into  Tab panes  < > r sort  / filter  p pause  ? help  q quit",
    };
    Line::from(vec![Span::styled(paused, bold()), Span::styled(keys, dim())])
}

/// Grey: nothing is to be done about it.
const IDLE: Color = Color::Rgb(0x75, 0x75, 0x75);

fn paint(share: Share) -> Style {
    match share {
        Share::State(state) => colour(state),
        Share::Idle => Style::new().fg(IDLE),
    }
}

/// The colour that stands for a state everywhere.
fn colour(state: State) -> Style {
    let [_, red, green, blue] = state.colour().to_be_bytes();
    Style::new().fg(Color::Rgb(red, green, blue))
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn selected() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

/// The heading of a pane.
fn heading(text: String, active: bool, width: u16) -> Line<'static> {
    let style = if active { bold().add_modifier(Modifier::UNDERLINED) } else { dim() };
    Line::styled(cut(&text, width.into()), style)
}

/// The first row to show, so that the cursor is in sight.
fn first_row(cursor: usize, height: usize, rows: usize) -> usize {
    if rows <= height {
        return 0;
    }
    cursor.saturating_sub(height / 2).min(rows - height)
}

#[cfg(test)]
mod tests;
