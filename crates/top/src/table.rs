//! Processes and their threads as rows: filtered, sorted, some of them folded.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use underspan_model::Class;

use crate::spent::Spent;
use crate::view::{Process, Thread, View};

/// What a table can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Id,
    Name,
    State,
    Since,
    Cpu,
    CpuWait,
    Contention,
    Network,
    Storage,
    Idle,
    Unknown,
}

impl Column {
    pub(crate) const ALL: [Column; 11] = [
        Column::Id,
        Column::Name,
        Column::State,
        Column::Since,
        Column::Cpu,
        Column::CpuWait,
        Column::Contention,
        Column::Network,
        Column::Storage,
        Column::Idle,
        Column::Unknown,
    ];

    /// Its heading.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Column::Id => "ID",
            Column::Name => "NAME",
            Column::State => "NOW",
            Column::Since => "FOR",
            Column::Cpu => "CPU",
            Column::CpuWait => "RDY",
            Column::Contention => "LCK",
            Column::Network => "NET",
            Column::Storage => "DSK",
            Column::Idle => "IDL",
            Column::Unknown => "OTH",
        }
    }

    /// The class of states whose time it shows.
    pub(crate) const fn class(self) -> Option<Class> {
        Some(match self {
            Column::Id | Column::Name | Column::State | Column::Since => return None,
            Column::Cpu => Class::Cpu,
            Column::CpuWait => Class::CpuWait,
            Column::Contention => Class::Contention,
            Column::Network => Class::Network,
            Column::Storage => Class::Storage,
            Column::Idle => Class::Idle,
            Column::Unknown => Class::Unknown,
        })
    }

    pub(crate) fn next(self, step: isize) -> Column {
        let at = Column::ALL.iter().position(|column| *column == self).unwrap_or(0) as isize;
        Column::ALL[(at + step).rem_euclid(Column::ALL.len() as isize) as usize]
    }
}

/// Time in shares of a class.
pub(crate) fn of_class(spent: &Spent, class: Class) -> u64 {
    spent.shares().filter(|(share, _)| share.class() == class).map(|(_, ns)| ns).sum()
}

/// A row, and with it what is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Process(u32),
    Thread(u32, u32),
}

/// A row's contents.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<'v> {
    Process(&'v Process),
    Thread(&'v Process, &'v Thread),
}

impl Row<'_> {
    pub(crate) fn key(&self) -> Key {
        match self {
            Row::Process(process) => Key::Process(process.pid),
            Row::Thread(process, thread) => Key::Thread(process.pid, thread.tid),
        }
    }

    pub(crate) fn spent(&self) -> &Spent {
        match self {
            Row::Process(process) => &process.spent,
            Row::Thread(_, thread) => &thread.spent,
        }
    }
}

/// Which rows, and in which order.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) column: Column,
    pub(crate) reverse: bool,
    pub(crate) filter: String,
    pub(crate) folded: BTreeSet<u32>,
}

impl Default for Order {
    fn default() -> Self {
        Order {
            column: Column::Cpu,
            reverse: false,
            filter: String::new(),
            folded: BTreeSet::new(),
        }
    }
}

impl Order {
    /// The rows that are shown. A process is there if one of its threads is.
    pub(crate) fn rows<'v>(&self, view: &'v View) -> Vec<Row<'v>> {
        let filter = self.filter.to_lowercase();
        let mut processes: Vec<_> = view.processes.iter().collect();
        processes.sort_by(|a, b| self.directed(self.process(a, b)));
        let mut rows = Vec::new();
        for process in processes {
            let whole = matches(&filter, &[&process.process, &process.pid.to_string()]);
            let mut threads: Vec<_> = process
                .threads
                .iter()
                .filter(|thread| whole || self.thread_matches(&filter, view, thread))
                .collect();
            if threads.is_empty() && !whole {
                continue;
            }
            threads.sort_by(|a, b| self.directed(self.thread(a, b)));
            rows.push(Row::Process(process));
            if !self.folded.contains(&process.pid) {
                rows.extend(threads.into_iter().map(|thread| Row::Thread(process, thread)));
            }
        }
        rows
    }

    fn thread_matches(&self, filter: &str, view: &View, thread: &Thread) -> bool {
        let served = view.requests.iter().filter(|request| request.tid == thread.tid);
        matches(filter, &[&thread.thread, thread.now().name(), &thread.tid.to_string()])
            || served.into_iter().any(|request| matches(filter, &[&request.path, &request.method]))
    }

    fn directed(&self, order: Ordering) -> Ordering {
        if self.reverse { order.reverse() } else { order }
    }

    /// Names and ids ascend, times descend.
    fn process(&self, a: &Process, b: &Process) -> Ordering {
        let order = match self.column {
            Column::Name => a.process.cmp(&b.process),
            Column::Id | Column::State | Column::Since => Ordering::Equal,
            _ => self.spent(&a.spent, &b.spent),
        };
        order.then(a.pid.cmp(&b.pid))
    }

    fn thread(&self, a: &Thread, b: &Thread) -> Ordering {
        let order = match self.column {
            Column::Id => Ordering::Equal,
            Column::Name => a.thread.cmp(&b.thread),
            Column::State => a.now().cmp(&b.now()),
            Column::Since => b.state_for_ns.cmp(&a.state_for_ns),
            _ => self.spent(&a.spent, &b.spent),
        };
        order.then(a.tid.cmp(&b.tid))
    }

    fn spent(&self, a: &Spent, b: &Spent) -> Ordering {
        match self.column.class() {
            Some(class) => of_class(b, class).cmp(&of_class(a, class)),
            None => Ordering::Equal,
        }
    }
}

/// Whether the text is in one of them. `filter` is in lower case; an empty one is in all.
pub(crate) fn matches(filter: &str, texts: &[&str]) -> bool {
    texts.iter().any(|text| text.to_lowercase().contains(filter))
}
