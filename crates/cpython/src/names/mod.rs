//! Python's names for its threads, read from `threading._active` of a running process.

mod dict;

use std::collections::HashMap;
use std::thread;

use crate::check::{MAX_THREADS, ThreadState, thread_states};
use crate::memory::{Memory, after};
use crate::object::{self, Objects, Problem};
use crate::process::Process;
use crate::{InspectError, Inspector, Interpreter, pthread};

/// How often a reading that failed is repeated: the process changes its dicts meanwhile.
const ATTEMPTS: u32 = 4;

/// A thread that `threading` knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadName {
    /// `threading.Thread.ident`: the pthread id.
    pub pthread_id: u64,
    /// The kernel's id, in our pid namespace; `None` if the thread has just ended.
    pub tid: Option<u32>,
    /// `threading.Thread.name`, cut at 256 characters.
    pub name: String,
}

/// Python's thread names of process `pid`, by kernel thread id in our pid namespace. Keep an
/// [`Inspector`] and use [`Interpreter::thread_names`] when asking more than once.
pub fn thread_names(pid: i32) -> Result<HashMap<u32, String>, InspectError> {
    let names = Inspector::new().inspect(pid)?.thread_names()?;
    Ok(names.into_iter().filter_map(|thread| Some((thread.tid?, thread.name))).collect())
}

impl Interpreter {
    /// The threads that `threading` knows, with their names. Empty when the program has not
    /// imported `threading`. Each call reads them anew, without stopping the process; a thread
    /// that starts or ends meanwhile may be missing.
    pub fn thread_names(&self) -> Result<Vec<ThreadName>, InspectError> {
        let mut attempt = 1;
        loop {
            let error = match self.read_thread_names() {
                Ok(names) => return Ok(names),
                Err(InspectError::Gone) => return Err(InspectError::Gone),
                Err(error) => error,
            };
            if attempt == ATTEMPTS {
                let ended = Process { pid: self.pid }.has_ended();
                return Err(if ended { InspectError::Gone } else { error });
            }
            attempt += 1;
            thread::sleep(crate::inspector::PAUSE);
        }
    }

    fn read_thread_names(&self) -> Result<Vec<ThreadName>, InspectError> {
        let memory = Memory::new(self.pid);
        let mut objects = Objects::new(memory, self.version, self.layout);
        let active = active_threads(&mut objects, self.main_interpreter)?;
        if active.is_empty() {
            return Ok(Vec::new());
        }
        let tasks = Process { pid: self.pid }.threads()?;
        let states = thread_states(memory, &self.layout, self.main_interpreter, MAX_THREADS)?;
        let native: HashMap<u64, u32> = states.iter().filter_map(native_id).collect();
        let mut names = Vec::with_capacity(active.len());
        let mut problem = None;
        for (ident, object) in active {
            match name_of(&mut objects, ident, object) {
                Ok((pthread_id, name)) => {
                    let inner = native.get(&pthread_id).copied();
                    let inner = inner.or_else(|| pthread::tid(memory, pthread_id));
                    let tid = inner.and_then(|tid| tasks.get(&tid).copied());
                    names.push(ThreadName { pthread_id, tid, name });
                }
                Err(Problem::Error(error)) => return Err(error),
                // One thread that ended meanwhile spoils only its own name.
                Err(other) => problem = Some(other),
            }
        }
        match problem {
            Some(problem) if names.is_empty() => Err(problem.into()),
            _ => Ok(names),
        }
    }
}

fn native_id(state: &ThreadState) -> Option<(u64, u32)> {
    Some((state.thread_id, state.native_id?))
}

/// `sys.modules['threading']._active`: ident object → thread object. Empty if it is not imported.
fn active_threads(objects: &mut Objects, interpreter: u64) -> Result<Vec<(u64, u64)>, Problem> {
    let modules = objects.layout.interp_modules;
    let modules = objects.memory.u64(after(interpreter, modules))?;
    if modules == 0 {
        return Ok(Vec::new());
    }
    let modules = objects.dict_items(modules)?;
    let Some((_, module)) = objects.find(&modules, "threading")? else { return Ok(Vec::new()) };
    let namespace = objects.memory.u64(after(module, object::MODULE_DICT))?;
    let namespace = objects.dict_items(namespace)?;
    // The module is in `sys.modules` before it has run.
    let Some((_, active)) = objects.find(&namespace, "_active")? else { return Ok(Vec::new()) };
    objects.dict_items(active)
}

fn name_of(objects: &mut Objects, ident: u64, thread: u64) -> Result<(u64, String), Problem> {
    let pthread_id = objects.integer(ident)?;
    let name = objects.attribute(thread, "_name")?;
    Ok((pthread_id, objects.name(name)?))
}
