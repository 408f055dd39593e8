//! CPython's own native frames that only connect: how a call gets from one Python function to the
//! next, and how the interpreter gets to the first.
//!
//! Who reads a mixed stack wants Python's functions and the C functions that they call
//! (`builtin_sorted`, `list_sort`, `time_sleep`, an extension's), as `py-spy --native` shows them;
//! not `_PyObject_Vectorcall` between each two of them. Only frames of the interpreter's own binary
//! are ever left out, and never the innermost: it is where the time goes.

/// Call machinery: names, and prefixes where they end in `*`. All versions from 3.8 to 3.14.
const CALLS: [&str; 44] = [
    "PyCFunction_Call",
    "PyEval_Call*",
    "PyEval_EvalCode*",
    "PyEval_EvalFrame",
    "PyEval_EvalFrameEx",
    "PyFunction_Vectorcall",
    "PyObject_Call*",
    "PyObject_Vectorcall*",
    "PyVectorcall_*",
    "_PyCFunction_*",
    "_PyEval_EvalCode*",
    "_PyEval_EvalFrame",
    "_PyEval_Vector*",
    "_PyFunction_*",
    "_PyMethodDef_RawFastCall*",
    "_PyMethodDescr_*",
    "_PyObject_Call*",
    "_PyObject_FastCall*",
    "_PyObject_MakeTpCall",
    "_PyObject_Vectorcall*",
    "_PyStack_*",
    "_PyVectorcall_*",
    "_TAIL_CALL_*",
    "_Py_TRAMPOLINE*",
    "call_function",
    "call_method",
    "call_attribute",
    "cfunction_call*",
    "cfunction_vectorcall*",
    "do_call_core",
    "fast_function",
    "function_code_fastcall",
    "gen_send_ex*",
    "method_call",
    "method_vectorcall*",
    "object_vacall",
    "slot_tp_*",
    "slot_nb_*",
    "slot_sq_*",
    "slot_mp_*",
    "trace_call_function",
    "vectorcall_*",
    "wrap_call",
    "wrapperdescr_call",
];

/// From a program's or a thread's start to its first Python function.
const START: [&str; 18] = [
    "PyRun_*",
    "Py_BytesMain",
    "Py_Main",
    "Py_RunMain",
    "_PyRun_*",
    "_Py_UnixMain",
    "builtin_exec*",
    "pymain_*",
    "pyrun_*",
    "pythread_wrapper",
    "run_eval_code_obj",
    "run_mod",
    "t_bootstrap",
    "thread_run",
    "thread_PyThread_start_new_thread",
    "PyImport_Import*",
    "import_run_*",
    "_PyImport_*",
];

/// Whether a function of CPython only passes calls on.
pub(crate) fn passes_calls_on(function: &str) -> bool {
    is_in(&CALLS, function)
}

/// Whether a function of CPython belongs to how a program or a thread starts.
pub(crate) fn starts(function: &str) -> bool {
    is_in(&START, function)
}

/// Whether a file is CPython and nothing else, so that what has no name in it is CPython's too.
pub(crate) fn is_cpython(module: &str) -> bool {
    module.starts_with("python3") || module.starts_with("libpython3")
}

fn is_in(table: &[&str], function: &str) -> bool {
    table.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => function.starts_with(prefix),
        None => function == *entry,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connects_and_what_works() {
        for name in
            ["_PyObject_Vectorcall", "method_vectorcall_NOARGS", "PyObject_Call", "gen_send_ex2"]
        {
            assert!(passes_calls_on(name), "{name}");
        }
        for name in [
            "builtin_sorted",
            "list_sort",
            "time_sleep",
            "lock_PyThread_acquire_lock",
            "gc_collect_main",
        ] {
            assert!(!passes_calls_on(name) && !starts(name), "{name}");
        }
        assert!(starts("Py_RunMain") && !starts("main"));
        assert!(is_cpython("python3.11") && is_cpython("libpython3.11.so.1.0"));
        assert!(!is_cpython("uwsgi"));
    }
}
