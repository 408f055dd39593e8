//! Processes and their threads: numbers, and a bar of what each did.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::{bold, first_row, paint, selected};
use crate::app::{App, Pane};
use crate::bar::{cells, cut_middle, percent, short};
use crate::spent::Spent;
use crate::table::{Column, Row, of_class};

/// Widths of the columns that are there, and of the bar.
struct Columns {
    name: usize,
    shares: Vec<Column>,
    bar: usize,
}

const ID: usize = 8;
const STATE: usize = 11;
const SINCE: usize = 6;
const SHARE: usize = 5;

impl Columns {
    fn fit(width: usize) -> Self {
        let narrow = [Column::Cpu, Column::CpuWait, Column::Contention];
        let wide = [
            Column::Cpu,
            Column::CpuWait,
            Column::Contention,
            Column::Network,
            Column::Storage,
            Column::Idle,
            Column::Unknown,
        ];
        let shares = if width < 110 { narrow.to_vec() } else { wide.to_vec() };
        let rest = width.saturating_sub(ID + STATE + SINCE + SHARE * shares.len() + 3);
        let name = (rest / 2).clamp(8, 40);
        Columns { name, bar: rest.saturating_sub(name), shares }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let columns = Columns::fit(area.width.into());
    let rows = app.order.rows(&app.view);
    let height = usize::from(area.height).saturating_sub(1);
    let first = first_row(app.cursor, height, rows.len());
    let mut lines = vec![title(app, &columns)];
    if rows.is_empty() {
        let text = if app.view.processes.is_empty() {
            "nothing is watched: no process runs Python or accepts TCP connections (see --pid)"
        } else {
            "nothing matches the filter"
        };
        lines.push(Line::from(text));
    }
    for (index, row) in rows.iter().enumerate().skip(first).take(height) {
        let here = app.pane == Pane::Threads && index == app.cursor;
        lines.push(line(row, app, &columns, here));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn title(app: &App, columns: &Columns) -> Line<'static> {
    let heading = |column: Column, text: String| {
        let sorted = column == app.order.column;
        let style = if sorted { selected() } else { bold() };
        Span::styled(text, style)
    };
    let mut spans = vec![
        heading(Column::Id, format!("{:>ID$}", "ID")),
        Span::raw(" "),
        heading(Column::Name, format!("{:<1$}", "NAME", columns.name)),
        Span::raw(" "),
        heading(Column::State, format!("{:<STATE$}", "NOW")),
        heading(Column::Since, format!("{:>SINCE$}", "FOR")),
    ];
    for column in &columns.shares {
        spans.push(heading(*column, format!("{:>SHARE$}", column.title())));
    }
    if !columns.shares.contains(&app.order.column) && app.order.column.class().is_some() {
        spans.push(heading(app.order.column, format!(" by {}", app.order.column.title())));
    }
    Line::from(spans)
}

fn line(row: &Row<'_>, app: &App, columns: &Columns, here: bool) -> Line<'static> {
    let style = if here { selected() } else { Style::new() };
    let name = |name: String| format!("{:<1$}", cut_middle(&name, columns.name), columns.name);
    let mut spans = match row {
        Row::Process(process) => {
            let fold = if app.order.folded.contains(&process.pid) { '▸' } else { '▾' };
            let python = match process.python.as_str() {
                "" => String::new(),
                version => format!(" py{version}"),
            };
            let threads = match process.threads.len() {
                1 => "1 thread".to_owned(),
                threads => format!("{threads} threads"),
            };
            vec![
                Span::styled(format!("{fold}{:>1$} ", process.pid, ID - 1), style),
                Span::styled(name(format!("{}{python}", process.process)), style.patch(bold())),
                Span::styled(format!(" {threads:<STATE$}"), style),
                Span::styled(" ".repeat(SINCE), style),
            ]
        }
        Row::Thread(_, thread) => vec![
            Span::styled(format!("{:>ID$} ", thread.tid), style),
            Span::styled(name(format!("  {}", thread.thread)), style),
            Span::styled(
                format!(" {:<STATE$}", thread.now().name()),
                style.patch(paint(thread.now())),
            ),
            Span::styled(format!("{:>SINCE$}", short(thread.state_for_ns)), style),
        ],
    };
    let spent = row.spent();
    for column in &columns.shares {
        let ns = column.class().map_or(0, |class| of_class(spent, class));
        let share = percent(ns, app.view.interval_ns);
        spans.push(Span::styled(format!("{share:>SHARE$}"), style));
    }
    spans.push(Span::raw(" "));
    spans.extend(bar(spent, columns.bar));
    Line::from(spans)
}

/// Coloured blocks, as long as each share of the time.
pub(super) fn bar(spent: &Spent, width: usize) -> Vec<Span<'static>> {
    let blocks = cells(spent, width);
    blocks.into_iter().map(|(share, cells)| Span::styled("█".repeat(cells), paint(share))).collect()
}
