use proptest::prelude::*;
use underspan_model::FrameKind;

use super::*;

fn frame(kind: FrameKind, function: &str, module: &str) -> Frame {
    let (function, module) = (function.to_owned(), module.to_owned());
    Frame { kind, function, file: String::new(), line: 0, module }
}

/// `E` is the evaluator, `name` CPython's, `?` CPython's without a name, `lib:name` a library's.
fn native(spec: &str) -> Vec<NativeFrame> {
    let one = |word: &str| {
        let (module, function) = match word.split_once(':') {
            Some(pair) => pair,
            None => ("libpython3.11.so.1.0", word),
        };
        let (evaluator, known) = (function == "E", function != "?");
        let function = if evaluator { "_PyEval_EvalFrameDefault" } else { function };
        NativeFrame {
            frames: [frame(FrameKind::Native, function, module)].into(),
            evaluator,
            interpreter: module.starts_with("libpython"),
            known,
        }
    };
    spec.split_whitespace().map(one).collect()
}

/// `name!` is one for which the evaluator was entered.
fn python(spec: &str) -> Vec<PythonCall> {
    let one = |word: &str| PythonCall {
        frame: frame(FrameKind::Python, word.trim_end_matches('!'), ""),
        entry: word.ends_with('!'),
    };
    spec.split_whitespace().map(one).collect()
}

fn words(frames: &[Frame]) -> String {
    let word = |frame: &Frame| match frame.kind {
        FrameKind::Python => format!("@{}", frame.function),
        _ => frame.function.clone(),
    };
    frames.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn whole(native_spec: &str, python_spec: &str) -> String {
    let both = interleave(&native(native_spec), python(python_spec), Truncated::default());
    assert!(!both.mismatch, "{native_spec} / {python_spec}: {}", words(&both.frames));
    words(&both.frames)
}

#[test]
fn one_evaluator_for_each_python_function_until_3_10() {
    let native = "c:clock_nanosleep time_sleep cfunction_vectorcall_O E function_code_fastcall E \
                  _PyFunction_Vectorcall E PyEval_EvalCode run_mod Py_RunMain exe:main";
    assert_eq!(
        whole(native, "inner! outer! <module>!"),
        "main @<module> @outer @inner time_sleep clock_nanosleep"
    );
}

#[test]
fn one_evaluator_for_several_python_functions_from_3_11() {
    let native = "c:read E _PyEval_Vector list_sort builtin_sorted E PyEval_EvalCode exe:main";
    assert_eq!(
        whole(native, "key_inner key! sorting outer <module>!"),
        "main @<module> @outer @sorting builtin_sorted list_sort @key @key_inner read"
    );
}

#[test]
fn a_generator_resumed_by_c_has_an_evaluator_of_its_own() {
    let native = "E gen_send_ex2 gen_iternext list_extend E exe:main";
    assert_eq!(
        whole(native, "numbers! <module>!"),
        "main @<module> list_extend gen_iternext @numbers"
    );
}

#[test]
fn an_extension_that_calls_back_stays() {
    let native =
        "E _PyObject_Vectorcall ext.so:callback ext.so:PyObject_Call method_vectorcall E exe:main";
    assert_eq!(
        whole(native, "f! <module>!"),
        "main @<module> PyObject_Call callback @f",
        "the machinery is CPython's alone"
    );
}

#[test]
fn a_thread_that_python_started() {
    let native = "c:futex PyThread_acquire_lock_timed lock_PyThread_acquire_lock \
                  method_vectorcall_VARARGS_KEYWORDS E _PyObject_Call thread_run pythread_wrapper \
                  c:start_thread c:clone3";
    assert_eq!(
        whole(native, "wait get _worker run!"),
        "clone3 start_thread @run @_worker @get @wait lock_PyThread_acquire_lock \
         PyThread_acquire_lock_timed futex"
    );
}

#[test]
fn a_stripped_interpreter_between_python_functions_says_nothing() {
    let native = "c:futex ? E ? ? E ? exe:main";
    assert_eq!(whole(native, "b! a!"), "main @a @b ? futex");
}

#[test]
fn the_innermost_frame_stays_whatever_it_is() {
    assert_eq!(whole("_PyObject_Vectorcall E exe:main", "f!"), "main @f _PyObject_Vectorcall");
}

#[test]
fn an_evaluator_just_entered_has_no_python_frame_yet() {
    assert_eq!(whole("E _PyEval_Vector E exe:main", "f!"), "main @f _PyEval_EvalFrameDefault");
}

#[test]
fn a_native_thread_has_native_frames_only() {
    assert_eq!(whole("c:futex blas:worker c:clone3", ""), "clone3 worker futex");
}

#[test]
fn python_frames_are_shown_when_the_native_walk_failed() {
    let truncated = Truncated { native: true, python: false };
    let both = interleave(&native("c:futex ext:wait"), python("f! g!"), truncated);
    assert_eq!((words(&both.frames).as_str(), both.mismatch), ("@g @f wait futex", false));
    let both = interleave(&[], python("f g!"), truncated);
    assert_eq!(words(&both.frames), "@g @f");
    let both = interleave(&native("c:futex E ext:call"), python("f! g! h!"), truncated);
    assert_eq!((words(&both.frames).as_str(), both.mismatch), ("@h @g call @f futex", false));
}

#[test]
fn evaluators_stay_when_the_python_walk_failed() {
    let truncated = Truncated { native: false, python: true };
    let both = interleave(&native("c:futex E list_sort E exe:main"), python("f!"), truncated);
    assert_eq!(
        (words(&both.frames).as_str(), both.mismatch),
        ("main _PyEval_EvalFrameDefault list_sort @f futex", false)
    );
    let both = interleave(&native("c:futex E exe:main"), python(""), truncated);
    assert_eq!(words(&both.frames), "main _PyEval_EvalFrameDefault futex");
}

#[test]
fn counts_that_disagree_are_told() {
    for (native_spec, python_spec, expected) in [
        ("c:futex E exe:main", "f! g!", "main @g @f futex"),
        (
            "c:futex E list_sort E exe:main",
            "f!",
            "main _PyEval_EvalFrameDefault list_sort @f futex",
        ),
        ("c:futex exe:main", "f! g!", "@g @f main futex"),
    ] {
        let both = interleave(&native(native_spec), python(python_spec), Truncated::default());
        assert!(both.mismatch, "{native_spec}");
        assert_eq!(words(&both.frames), expected);
    }
}

#[test]
fn trampolines_made_for_other_tools_are_left_out() {
    let native = "c:futex E [jit]:py::f:/a.py _PyEval_Vector E [jit]:py::g:/a.py exe:main";
    assert_eq!(whole(native, "f! g!"), "main @g @f futex");
}

#[test]
fn inlined_functions_come_after_the_one_they_are_in() {
    let mut stack = native("lib:outer exe:main");
    let inlined = ["leaf", "middle", "outer"].map(|name| frame(FrameKind::Native, name, "lib"));
    stack[0].frames = inlined.into();
    let both = interleave(&stack, Vec::new(), Truncated::default());
    assert_eq!(words(&both.frames), "main outer middle leaf");
}

/// Native frames with a number each, so that none is like another.
fn any_native() -> impl Strategy<Value = Vec<NativeFrame>> {
    let one =
        prop_oneof![Just("E"), Just("lib:f"), Just("list_sort"), Just("_PyObject_Call"), Just("?")];
    proptest::collection::vec(one, 0..40).prop_map(|words| {
        let mut frames = native(&words.join(" "));
        for (number, one) in frames.iter_mut().enumerate() {
            let mut own = one.frames.to_vec();
            own[0].line = number as u32 + 1;
            one.frames = own.into();
        }
        frames
    })
}

fn any_python() -> impl Strategy<Value = Vec<PythonCall>> {
    proptest::collection::vec(any::<bool>(), 0..40).prop_map(|entries| {
        let one = |(number, entry): (usize, bool)| PythonCall {
            frame: Frame { line: number as u32 + 1, ..frame(FrameKind::Python, "f", "") },
            entry,
        };
        entries.into_iter().enumerate().map(one).collect()
    })
}

proptest! {
    /// No frame is lost, doubled or moved past another of its kind, except CPython's own plumbing
    /// and as many evaluators as there are Python frames to stand in their place.
    #[test]
    fn nothing_is_lost_or_reordered(
        native in any_native(),
        python in any_python(),
        native_truncated: bool,
        python_truncated: bool,
    ) {
        let truncated = Truncated { native: native_truncated, python: python_truncated };
        let both = interleave(&native, python.clone(), truncated);
        let lines = |kind: FrameKind| -> Vec<u32> {
            both.frames.iter().rev().filter(|f| f.kind == kind).map(|f| f.line).collect()
        };
        let all: Vec<u32> = python.iter().map(|call| call.frame.line).collect();
        prop_assert_eq!(lines(FrameKind::Python), all);

        let kept = lines(FrameKind::Native);
        prop_assert!(kept.is_sorted());
        let groups = python.split_inclusive(|call| call.entry).count();
        let evaluators = native.iter().filter(|frame| frame.evaluator).count();
        let mut gone = 0;
        for one in &native {
            let there = kept.contains(&one.frames[0].line);
            gone += usize::from(one.evaluator && !there);
            let plumbing = one.frames[0].function == "_PyObject_Call" || !one.known;
            prop_assert!(there || one.evaluator || (plumbing && groups > 0), "{}", one.frames[0].function);
        }
        prop_assert_eq!(gone, groups.min(evaluators));
        if let Some(innermost) = native.first() {
            prop_assert!(innermost.evaluator || kept.contains(&innermost.frames[0].line));
        }
        if groups == evaluators {
            prop_assert!(!both.mismatch);
        }
        if groups > 0 && groups != evaluators && !native_truncated && !python_truncated {
            let entered = groups + 1 == evaluators && native.first().is_some_and(|f| f.evaluator);
            prop_assert_eq!(both.mismatch, !entered);
        }
    }
}
