//! What `--help` says, as a user reads it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;

use insta::assert_snapshot;

fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_underspan"))
        .args(arguments)
        .env_remove("UNDERSPAN_DATA")
        .env_remove("UNDERSPAN_STORE")
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The subcommands, as the overview lists them.
fn subcommands(overview: &str) -> Vec<String> {
    let lines = overview.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn the_overview() {
    assert_snapshot!(help(&["-h"]));
}

#[test]
fn options_of_a_picture() {
    assert_snapshot!(help(&["flame", "-h"]));
}

/// Options stand under headings, those that every command takes last, and examples end it.
#[test]
fn every_subcommand_has_order() {
    let names = subcommands(&help(&["-h"]));
    assert_eq!(names.len(), 12, "{names:?}");
    for name in names {
        for form in ["-h", "--help"] {
            let text = help(&[&name, form]);
            assert!(!text.contains("\nOptions:\n"), "{name}: {text}");
            let global = text.find("\nGlobal options:\n").unwrap();
            let examples = text.find("\nExamples:\n").unwrap();
            assert!(global < examples, "{name}: {text}");
            let later = &text[global + 1..examples];
            assert!(!later.contains("\n\n\n"), "{name}: {text}");
            let headings =
                later.lines().filter(|line| line.ends_with(':') && !line.starts_with(' '));
            assert_eq!(headings.count(), 1, "{name}: {text}");
            let calls = text[examples..].lines().filter(|line| line.contains("underspan "));
            assert!(calls.clone().count() >= 2, "{name}: {text}");
            assert!(calls.into_iter().all(|call| call.contains(&format!("underspan {name}"))));
        }
    }
}

/// What an example says can be said: its options exist.
#[test]
fn examples_name_options_that_exist() {
    for name in subcommands(&help(&["-h"])) {
        let text = help(&[&name, "-h"]);
        let (options, examples) = text.split_once("\nExamples:\n").unwrap();
        // After `--` the words are another program's.
        let ours = examples.lines().map(|line| line.split(" -- ").next().unwrap());
        for option in ours.flat_map(str::split_whitespace).filter(|word| word.starts_with("--")) {
            assert!(
                options.contains(&format!("{option} ")) || options.contains(&format!("{option}\n")),
                "{name}: {option}"
            );
        }
    }
}
