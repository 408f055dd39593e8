//! What the keys and columns are.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

const TEXT: &str = "\
↑ ↓ j k PgUp PgDn Home End   move          Tab   threads, requests, culprits
Enter   look into the thread: its stack    Esc   back; clear the filter
< >     sort by the next column            r     the other way round
/       show only what contains a text: names, ids, states, paths
← →     fold and unfold a process          p     pause   q  quit

NOW FOR  what the thread does, and for how long already
In % of the last interval:
CPU  on a CPU                              RDY  ready, waiting for a CPU
LCK  for the GIL, a collection or a lock   NET  for a socket
DSK  for storage or a page                 IDL  for something to do, or asleep
The bar has a colour for each state; the second line says which.
IN FLIGHT  requests that were read and have no answer yet
KEPT OTHERS WAITING  lock waits count inside requests only
cost  this program + its programs in the kernel, in % of a CPU";

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<_> = TEXT.lines().map(Line::from).collect();
    let width = area.width.min(80);
    let height = area.height.min(lines.len() as u16 + 2);
    let popup = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, popup);
    let block = Block::bordered().title(" underspan top: any key closes this ");
    frame.render_widget(Paragraph::new(lines).block(block), popup);
}
