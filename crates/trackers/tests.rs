//! What holds for all trackers: each folder is complete, tables and decoders agree, and no bytes
//! make a decoder panic.

use crate as api;

#[path = "tests/support/mod.rs"]
pub(crate) mod support;

mod complete {
    use std::collections::BTreeSet;
    use std::ffi::OsStr;
    use std::fs;
    use std::path::{Path, PathBuf};

    use object::{Object as _, ObjectSymbol as _, SymbolKind};
    use underspan_model::{State, column};

    use super::support::tables;
    use crate::{ALL, Attach};

    /// Trackers that only read memory.
    pub(super) const WITHOUT_BPF: [&str; 2] = ["goroutine", "throttle"];
    const NOT_TRACKERS: [&str; 4] = ["bpf", "session", "stack", "tests"];

    fn source() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    fn folders() -> BTreeSet<String> {
        fs::read_dir(source())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .map(|path| path.file_name().and_then(OsStr::to_str).unwrap().to_owned())
            .filter(|name| !NOT_TRACKERS.contains(&name.as_str()))
            .collect()
    }

    fn files(folder: &str) -> Vec<PathBuf> {
        fs::read_dir(source().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn has(folder: &str, suffixes: &[&str], but_not: &str) -> bool {
        files(folder).iter().any(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            suffixes.iter().any(|suffix| name.ends_with(suffix))
                && (but_not.is_empty() || !name.ends_with(but_not))
        })
    }

    #[test]
    fn every_folder_is_a_tracker_in_all() {
        let listed: BTreeSet<_> = ALL.iter().map(|tracker| tracker.name().to_owned()).collect();
        assert_eq!(listed.len(), ALL.len(), "two trackers of one name");
        assert_eq!(folders(), listed, "left: folders, right: ALL");
    }

    #[test]
    fn no_tracker_lacks_a_piece() {
        for folder in folders() {
            for piece in ["README.md", "mod.rs", "decode.rs", "table.sql", "tests.rs"] {
                let path = source().join(&folder).join(piece);
                let text = fs::read_to_string(&path).unwrap_or_default();
                assert!(text.trim().len() > 40, "{} is missing or empty", path.display());
            }
            let with_bpf = !WITHOUT_BPF.contains(&folder.as_str());
            let header = has(&folder, &[".h"], ".bpf.h");
            assert_eq!(header, with_bpf, "{folder}: a header for its records");
            assert_eq!(has(&folder, &[".bpf.c", ".bpf.h"], ""), with_bpf, "{folder}: BPF code");
        }
    }

    #[test]
    fn readmes_tell_the_question_and_every_column() {
        for tracker in ALL {
            let readme = tracker.readme();
            let name = tracker.name();
            assert!(
                readme.contains(tracker.question()),
                "{name}: its question is not in its README"
            );
            for (table, columns) in tracker.tables() {
                assert!(readme.contains(&format!("`{table}`")), "{name}: README without {table}");
                for column in columns {
                    let state = column.strip_suffix("_ns").and_then(State::from_name).is_some();
                    let written = readme.contains(&format!("`{column}`"));
                    assert!(state || written, "{name}: README without {table}.{column}");
                }
            }
        }
    }

    #[test]
    fn the_ledgers_readme_explains_every_state() {
        let readme = crate::Tracker::readme(&crate::ledger::LedgerTracker);
        for state in State::ALL {
            let row = format!("| `{}` |", state.name());
            assert_eq!(readme.matches(&row).count(), 1, "{row} in ledger/README.md");
        }
    }

    #[test]
    fn tables_have_the_columns_that_decoders_write() {
        let created = tables();
        let mut named = BTreeSet::new();
        for tracker in ALL {
            assert!(tracker.sql().starts_with("-- migration 1: "), "{}", tracker.name());
            for (table, columns) in tracker.tables() {
                let sql = created.get(table).unwrap_or_else(|| panic!("nobody creates {table}"));
                assert_eq!(sql.tracker, tracker.name(), "who creates {table}");
                let names: Vec<_> = sql.columns.iter().map(|column| column.name.clone()).collect();
                assert_eq!(names, columns, "left: table.sql of {table}, right: tables()");
                named.insert(table.to_owned());
            }
        }
        assert_eq!(named, created.into_keys().collect(), "left: tables(), right: table.sql");
    }

    #[test]
    fn rows_about_time_begin_alike() {
        let expected = [
            ("host", "LowCardinality(String)"),
            ("pid", "UInt32"),
            ("tid", "UInt32"),
            ("start_time", "DateTime64(9, 'UTC')"),
            ("duration_ns", "UInt64"),
            ("ns_pid", "UInt32"),
            ("ns_tid", "UInt32"),
            ("thread", "LowCardinality(String)"),
        ];
        for (table, sql) in tables() {
            let first = sql.columns.iter().take(expected.len());
            let first: Vec<_> = first.map(|c| (c.name.as_str(), c.kind.as_str())).collect();
            assert_eq!(first, expected, "{table}");
        }
    }

    #[test]
    fn ledger_tables_have_every_state_once_and_in_order() {
        let all = State::ALL.map(column);
        let mut with_ledger = Vec::new();
        for (table, sql) in tables() {
            let of_states: Vec<_> = sql
                .columns
                .iter()
                .filter(|column| all.contains(&column.name))
                .map(|column| column.name.clone())
                .collect();
            // `waits` has a `runnable_ns` of its own.
            if of_states.len() > 1 {
                assert_eq!(of_states, all, "{table}");
                assert!(
                    sql.columns.ends_with(
                        &all.clone()
                            .map(|name| super::support::Column { name, kind: "UInt64".to_owned() })
                    )
                );
                with_ledger.push(table);
            }
        }
        assert_eq!(with_ledger, ["loop_stall", "requests", "requests_open", "thread_states"]);
    }

    #[test]
    fn tables_are_kept_and_sorted_as_the_design_says() {
        for tracker in ALL {
            let sql = tracker.sql();
            let tables = tracker.tables().len();
            for clause in [
                ") ENGINE = {engine}\nPARTITION BY toDate(start_time)\n",
                "ORDER BY (host, pid, tid, start_time)\n",
                "TTL toDateTime(start_time) + INTERVAL {ttl_days} DAY\n",
            ] {
                assert_eq!(sql.matches(clause).count(), tables, "{}: {clause}", tracker.name());
            }
        }
    }

    /// Names of the functions in the linked BPF object, with the section each is in.
    fn programs() -> Vec<(String, String)> {
        let objects: [&[u8]; 2] = [
            &fs::read(concat!(env!("OUT_DIR"), "/underspan.bpf.o")).unwrap(),
            &fs::read(concat!(env!("OUT_DIR"), "/netstack.bpf.o")).unwrap(),
        ];
        objects.iter().flat_map(|bytes| programs_of(bytes)).collect()
    }

    fn programs_of(bytes: &[u8]) -> Vec<(String, String)> {
        let object = object::File::parse(bytes).unwrap();
        object
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_global())
            .map(|symbol| {
                use object::ObjectSection as _;
                let section = object.section_by_index(symbol.section_index().unwrap()).unwrap();
                (symbol.name().unwrap().to_owned(), section.name().unwrap().to_owned())
            })
            .collect()
    }

    #[test]
    fn every_hooks_program_is_in_the_object_and_attaches_as_it_says() {
        let programs = programs();
        assert!(!programs.is_empty());
        let mut wrong = Vec::new();
        for program in ALL.iter().flat_map(|t| t.hooks()).flat_map(|hook| hook.programs) {
            let section = match program.attach {
                Attach::BtfTracepoint(name) | Attach::BtfTracepointWith(name, _) => {
                    format!("tp_btf/{name}")
                }
                Attach::Tracepoint(name) => format!("tp/{name}"),
                Attach::Fentry(name) => format!("fentry/{name}"),
                Attach::Fexit(name) => format!("fexit/{name}"),
                Attach::Netfilter(_) => "netfilter".to_owned(),
                Attach::Iterator(name) => format!("iter/{name}"),
                Attach::CpuClock | Attach::HardwareCounters => "perf_event".to_owned(),
                Attach::PerProcess(_) | Attach::TaskWork => String::new(),
            };
            let found = programs.iter().find(|(name, _)| name == program.name);
            // An iterator's program may be one that sleeps.
            match found.map(|(name, section)| (name, section.replace("iter.s/", "iter/"))) {
                None => wrong.push(format!("{} is not in the object", program.name)),
                Some((_, found)) if !section.is_empty() && found != section => {
                    wrong.push(format!("{} is in {found}, not {section}", program.name));
                }
                Some(_) => {}
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn one_program_is_on_sched_switch() {
        let on_switch: Vec<_> = programs()
            .into_iter()
            .filter(|(_, section)| section.contains("sched_switch"))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(on_switch, ["ledger_switch"]);
    }

    #[test]
    fn hooks_are_named_once_and_each_has_a_program() {
        for tracker in ALL {
            let mut seen = BTreeSet::new();
            for hook in tracker.hooks() {
                assert!(
                    seen.insert(hook.what),
                    "{}: two hooks for {:?}",
                    tracker.name(),
                    hook.what
                );
                assert!(!hook.programs.is_empty(), "{}: {:?}", tracker.name(), hook.what);
            }
        }
    }
}

mod counters {
    use super::complete::WITHOUT_BPF;
    use crate::ALL;
    use crate::record::{lost_reason, tracker_id};
    use crate::session::{REASONS, TRACKER_IDS};

    /// The variants of a C enum in a header, without their prefix and in lower case.
    fn variants(header: &str, name: &str, prefix: &str) -> Vec<String> {
        let (_, rest) = header.split_once(&format!("enum {name} {{")).unwrap();
        let (body, _) = rest.split_once('}').unwrap();
        body.lines()
            .filter_map(|line| line.trim().split(',').next()?.strip_prefix(prefix))
            .map(str::to_lowercase)
            .collect()
    }

    #[test]
    fn every_tracker_and_reason_of_the_header_has_its_number() {
        let header = include_str!("bpf/event.h");
        let trackers = variants(header, "tracker_id", "TRACKER_");
        let reasons = variants(header, "lost_reason", "LOST_");
        assert_eq!(reasons.last().unwrap(), "reasons", "the enum ends with how many there are");

        let in_session = |table: &[(&str, u32)]| -> Vec<String> {
            for (index, (name, number)) in table.iter().enumerate() {
                assert_eq!(*number as usize, index, "{name}");
            }
            table.iter().map(|(name, _)| (*name).to_owned()).collect()
        };
        assert_eq!(in_session(&TRACKER_IDS), trackers);
        assert_eq!(in_session(&REASONS), reasons[..reasons.len() - 1]);
        assert_eq!(tracker_id::TRACKERS as usize, TRACKER_IDS.len());
        assert_eq!(lost_reason::LOST_REASONS as usize, REASONS.len());
    }

    #[test]
    fn the_counters_names_are_the_trackers_names() {
        let names: Vec<_> = TRACKER_IDS.iter().map(|(name, _)| *name).collect();
        // One that is separate counts in a map of its own.
        let listed = ALL.iter().filter(|tracker| !tracker.is_separate());
        let listed: Vec<_> = listed
            .map(|tracker| tracker.name())
            .filter(|name| !WITHOUT_BPF.contains(name))
            .collect();
        assert_eq!(names, listed);
    }
}

mod any_bytes {
    use proptest::prelude::*;

    use super::support::{FakeContext, decode};
    use crate::record::event_kind;
    use crate::{ALL, Rows, ThreadSnapshot, can_shed, lifecycle};

    const KINDS: u32 = event_kind::EVENT_REQUEST_ANSWER + 3;

    /// A record of any kind, known or not, with anything in it, often too short.
    fn record() -> impl Strategy<Value = Vec<u8>> {
        let body = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..400),
            proptest::collection::vec(any::<u8>(), 0..2600),
            // Many fields are plausible: mostly zero, some small numbers.
            proptest::collection::vec(prop_oneof![8 => Just(0u8), 1 => 0..4u8], 0..600),
        ];
        (0..KINDS, body).prop_map(|(kind, body)| [&kind.to_ne_bytes()[..], &body].concat())
    }

    proptest! {
        #![proptest_config(super::support::cases(400))]

        #[test]
        fn never_make_a_decoder_panic(records in proptest::collection::vec(record(), 1..12)) {
            let mut context = FakeContext::new();
            for tracker in ALL {
                let mut decoder = tracker.decoder();
                let mut rows = Rows::default();
                for bytes in &records {
                    let _ = decoder.event(bytes, &mut context, &mut rows);
                }
                decoder.tick(u64::MAX / 2, &mut context, &mut rows);
                decoder.finish(u64::MAX, &mut context, &mut rows);
                decode(&mut rows);
            }
        }

        #[test]
        fn never_make_the_life_cycle_panic(bytes in record()) {
            let _ = lifecycle(&bytes);
            let _ = can_shed(&bytes);
        }

        #[test]
        fn are_no_ledger_unless_they_sum(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            prop_assert!(!matches!(ThreadSnapshot::copied(&bytes), Some(Ok(_))));
        }
    }

    #[test]
    fn a_cut_header_belongs_to_nobody() {
        for len in 0..4 {
            let bytes = &event_kind::EVENT_WAIT.to_ne_bytes()[..len];
            assert_eq!(lifecycle(bytes), Ok(None));
            for tracker in ALL {
                let mut rows = Rows::default();
                let mut context = FakeContext::new();
                assert_eq!(tracker.decoder().event(bytes, &mut context, &mut rows), Ok(()));
                assert!(decode(&mut rows).is_empty());
            }
        }
    }
}
