//! A program whose threads stand still in call trees of every kind, and tell where.

use super::Program;

/// In it, a function named `c_…` is called from C code, one named `p_…` from Python code.
pub(crate) const PROGRAM: &str = r#"
import asyncio, contextlib, functools, threading, time

sys.setrecursionlimit(100000)
threading.stack_size(256 << 20)
gate = threading.Lock()
gate.acquire()

# Functions run often before they wait, so that they are specialized where Python does that.
def wait(warm):
    if not warm:
        gate.acquire()

def each(*steps):
    for step in steps: step

def p_plain(warm):
    def p_inner(warm):
        each(1,
             2, wait(warm),
             3)
    p_inner(warm); return 1

def deep(n, warm):
    if n == 0:
        wait(warm)
    else:
        deep(n - 1, warm)

def p_sorted(warm):
    return sorted([1], key=lambda item: p_key(item, warm))

def p_key(item, warm):
    wait(warm)
    return item

def p_c_calls(warm):
    def c_add(a, b):
        list(map(c_mapped, [b]))
        return a
    def c_mapped(b):
        p_plain(warm)
    functools.reduce(c_add, [1, 2])
    (lambda:
        functools.partial(c_mapped, 1)())()

def inner(warm):
    yield 1
    p_plain(warm)
    yield 2

def generator(warm):
    got = yield from inner(warm)
    yield 3

def p_generator(warm):
    for item in generator(warm):
        pass

def p_send(warm):
    made = generator(warm)
    made.send(None)
    made.send(None)

def p_comprehensions(warm):
    return [{i: [p_plain(warm) for j in range(1)] for i in range(1)} for k in range(1)], \
        sum(p_plain(warm) for i in range(1))

async def leaf(warm):
    await asyncio.sleep(0)
    p_plain(warm)

async def middle(warm):
    async with manager(warm):
        await asyncio.gather(leaf(warm))

@contextlib.asynccontextmanager
async def manager(warm):
    yield await asyncio.sleep(0)

def p_asyncio(warm):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(middle(warm))
    loop.close()

class Thing:
    def __init__(self, warm, how):
        if how == 'init':
            p_plain(warm)
        self.warm = warm
    @property
    def value(self):
        return p_plain(self.warm)
    def __getattr__(self, name):
        return p_plain(self.warm)
    def __iter__(self):
        return self
    def __next__(self):
        p_plain(self.warm)
        raise StopIteration
    def __hash__(self):
        p_plain(self.warm)
        return 1
    def __enter__(self):
        return p_plain(self.warm)
    def __exit__(self, *args):
        pass

def p_init(warm):
    Thing(warm, 'init')

def p_property(warm):
    return Thing(warm, '').value

def p_getattr(warm):
    return Thing(warm, '').missing

def p_iterator(warm):
    for item in Thing(warm, ''): pass

def p_hash(warm):
    {Thing(warm, ''): 1}

def p_with(warm):
    with Thing(warm, '') as thing, \
         contextlib.suppress(ValueError):
        pass

source = '''
def executed(warm):
    x = [1,
         eval("p_plain(warm)", globals(), {'warm': warm})]
    class Körper:
        p_plain(warm)
'''
exec(compile(source, 'einmal ü.py', 'exec'))

def far(warm):
    pass; pass
SPACE
    p_plain(warm)

@functools.lru_cache(None)
def c_cached(warm, n):
    return p_plain(warm)

def p_cached(warm, n=[0]):
    n[0] += 1
    c_cached(warm, n[0])

def p_raises(warm):
    try:
        [].missing
    except AttributeError:
        try:
            raise ValueError from None
        except ValueError as error:
            p_plain(warm)
        finally:
            pass

def p_star(*args, **more):
    p_plain(*args, **more)

async def asynchronous(warm):
    async for item in produced(warm):
        pass
    return [item async for item in produced(warm)]

async def produced(warm):
    yield 1
    p_plain(warm)

def p_driven(warm):
    try:
        asynchronous(warm).send(None)
    except StopIteration:
        pass

class Meta(type):
    def __call__(cls, warm):
        p_plain(warm)
        return super().__call__()

class Made(metaclass=Meta):
    pass

def p_metaclass(warm):
    Made(warm)

trees = [p_plain, p_sorted, p_c_calls, p_generator, p_send, p_comprehensions, p_asyncio, p_init,
         p_property, p_getattr, p_iterator, p_hash, p_with, executed, far, p_cached, p_raises, p_star,
         p_driven, p_metaclass]
deeps = [5, 40, 120, 600]

for tree in trees:
    for _ in range(100):
        tree(True)

for tree in trees:
    threading.Thread(target=tree, args=(False,), name=tree.__name__, daemon=True).start()
for depth in deeps:
    threading.Thread(target=deep, args=(depth, False), name=f'deep_{depth}', daemon=True).start()

def waits(thread):
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code is wait.__code__

threads = [t for t in threading.enumerate() if t is not threading.main_thread()]
while not all(map(waits, threads)):
    time.sleep(0.01)
time.sleep(0.05)

def tell():
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames[thread.ident]
        said = [thread.name, thread.ident, thread.native_id]
        while frame:
            code = frame.f_code
            said += [id(code), code.co_filename, getattr(code, 'co_qualname', ''), code.co_name,
                     frame.f_lineno, code.co_firstlineno, frame.f_lasti]
            frame = frame.f_back
        print(*said, sep='\t')
    say('end')

tell()
for line in lines():
    while not gate.locked():  # whom the last release woke has not taken it yet
        time.sleep(0.001)
    gate.release()
    tell()
"#;

/// A frame, as Python tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) code: u64,
    pub(crate) file: String,
    pub(crate) qualname: String,
    pub(crate) name: String,
    pub(crate) line: u32,
    pub(crate) first_line: u32,
    pub(crate) lasti: u32,
}

/// A thread and its frames, innermost first.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) thread: String,
    pub(crate) pthread: u64,
    pub(crate) tid: u32,
    pub(crate) frames: Vec<Frame>,
}

/// The program's text: one function of it is longer than what one entry of a line table can skip.
pub(crate) fn program() -> String {
    PROGRAM.replace("SPACE", &"\n".repeat(700))
}

/// What the program says of its threads. Those but the first stand still.
pub(crate) fn hear(program: &mut Program) -> Vec<Told> {
    let mut told = Vec::new();
    loop {
        let line = program.hear();
        if line == "end" {
            return told;
        }
        let fields: Vec<&str> = line.split('\t').collect();
        let (head, frames) = fields.split_at(3);
        let frames = frames.chunks_exact(7).map(|field| Frame {
            code: field[0].parse().unwrap(),
            file: field[1].to_owned(),
            qualname: field[2].to_owned(),
            name: field[3].to_owned(),
            line: field[4].parse().unwrap_or(0),
            first_line: field[5].parse().unwrap(),
            lasti: field[6].parse().unwrap(),
        });
        told.push(Told {
            thread: head[0].to_owned(),
            pthread: head[1].parse().unwrap(),
            tid: head[2].parse().unwrap(),
            frames: frames.collect(),
        });
    }
}
