//! Which server it is, as far as its name tells, and what its options are called: the only place for them.

use crate::Evidence;

/// A server whose options are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Gunicorn,
    Uwsgi,
    Uvicorn,
    Waitress,
    Puma,
    PhpFpm,
    Nginx,
    /// Any other: general words do.
    Other,
}

const NAMES: [(&str, Server); 7] = [
    ("gunicorn", Server::Gunicorn),
    ("uwsgi", Server::Uwsgi),
    ("uvicorn", Server::Uvicorn),
    ("waitress", Server::Waitress),
    ("puma", Server::Puma),
    ("php-fpm", Server::PhpFpm),
    ("nginx", Server::Nginx),
];

/// So many words of a command line: an interpreter, `-m`, and the server.
const COMMAND: usize = 3;

impl Server {
    /// That of the request, by its process's name and how it was started.
    pub(crate) fn of(evidence: &Evidence) -> Server {
        let request = evidence.request.as_ref().map_or("", |request| &request.process);
        let process = evidence.process.as_ref();
        let (name, command) = process.map_or(("", ""), |p| (&p.process, &p.cmdline));
        let words = command.split_whitespace().take(COMMAND);
        let names = [request, name].into_iter().chain(words);
        let known = names.map(Server::by_name).find(|server| *server != Server::Other);
        known.unwrap_or(Server::Other)
    }

    /// By a process's name, or a program's path.
    pub(crate) fn by_name(name: &str) -> Server {
        let name = name.rsplit('/').next().unwrap_or_default();
        let known = NAMES.iter().find(|(known, _)| name.starts_with(known));
        known.map_or(Server::Other, |(_, server)| *server)
    }

    /// Whether it runs Python only.
    pub(crate) const fn is_pythons(self) -> bool {
        matches!(self, Server::Gunicorn | Server::Uvicorn | Server::Waitress)
    }

    /// ` (gunicorn: --workers)`: how many processes it has.
    pub(crate) const fn processes(self) -> &'static str {
        match self {
            Server::Gunicorn => " (gunicorn: --workers)",
            Server::Uwsgi => " (uWSGI: --processes)",
            Server::Uvicorn => " (uvicorn: --workers)",
            Server::Puma => " (puma: -w)",
            Server::PhpFpm => " (php-fpm: pm.max_children)",
            Server::Nginx => " (nginx: worker_processes)",
            // It has one process.
            Server::Waitress | Server::Other => "",
        }
    }

    /// ` (gunicorn: --threads 8)`: how many threads each has.
    pub(crate) fn threads(self, n: impl std::fmt::Display) -> String {
        match self {
            Server::Gunicorn => format!(" (gunicorn: --threads {n})"),
            Server::Uwsgi => format!(" (uWSGI: --threads {n})"),
            Server::Waitress => format!(" (waitress: --threads={n})"),
            Server::Puma => format!(" (puma: -t {n}:{n})"),
            Server::Uvicorn | Server::PhpFpm | Server::Nginx | Server::Other => String::new(),
        }
    }

    /// What helps if one that accepts serves meanwhile.
    pub(crate) const fn accept_beside(self) -> &'static str {
        match self {
            Server::Gunicorn => {
                "More processes that accept (gunicorn: --workers), or a worker class with threads \
                 (--worker-class gthread --threads N)"
            }
            Server::Uwsgi => {
                "More processes or threads that accept (uWSGI: --processes, --threads)"
            }
            Server::Uvicorn => "More processes that accept (uvicorn: --workers)",
            Server::Puma => "More processes or threads that accept (puma: -w, -t)",
            Server::PhpFpm => "More processes that accept (php-fpm: pm.max_children)",
            Server::Nginx => "More processes that accept (nginx: worker_processes)",
            Server::Waitress | Server::Other => {
                "More processes that accept, or other threads that serve what this one accepts"
            }
        }
    }

    /// ` (gunicorn: --backlog; listen())`: how long a queue it asks for.
    pub(crate) const fn backlog(self) -> &'static str {
        match self {
            Server::Gunicorn => " (gunicorn: --backlog; listen())",
            Server::Uwsgi => " (uWSGI: --listen)",
            Server::Uvicorn => " (uvicorn: --backlog)",
            Server::Puma => " (puma: `?backlog=` of its bind)",
            Server::PhpFpm => " (php-fpm: listen.backlog)",
            Server::Waitress => " (waitress: --backlog)",
            Server::Nginx => " (nginx: `backlog=` of its listen)",
            Server::Other => " (listen())",
        }
    }

    /// ` (gunicorn: …)`: what ends its processes, and how it does not end them all at once.
    pub(crate) const fn restarts(self) -> &'static str {
        match self {
            Server::Gunicorn => {
                " (gunicorn: --max-requests with --max-requests-jitter, --preload; look in its log for \
                 workers that --timeout or --graceful-timeout ended)"
            }
            Server::Uwsgi => {
                " (uWSGI: --max-requests with --max-requests-delta, no --lazy-apps; look in its log for \
                 workers that --harakiri ended)"
            }
            Server::Uvicorn => " (uvicorn: --limit-max-requests)",
            Server::Puma => " (puma: a phased restart, preload_app!, worker_timeout)",
            Server::PhpFpm => {
                " (php-fpm: pm = static, or pm.min_spare_servers; pm.max_requests, \
                 request_terminate_timeout)"
            }
            Server::Nginx | Server::Waitress | Server::Other => "",
        }
    }

    /// What helps against a client that is slow to take its answer.
    pub(crate) const fn slow_client(self) -> &'static str {
        match self {
            Server::Nginx => {
                "Let it take the whole answer from the upstream at once, so that only itself waits for a slow \
                 client (nginx: proxy_buffering on, larger proxy_buffers, proxy_max_temp_file_size)"
            }
            _ => {
                "Put a buffering proxy (nginx) in front, so that a worker thread is not held by a slow client"
            }
        }
    }

    /// ` (gunicorn: in post_fork)`: where its processes can do something of their own as they start.
    pub(crate) const fn after_fork(self) -> &'static str {
        match self {
            Server::Gunicorn => " (gunicorn: in post_fork, after preload)",
            Server::Uwsgi => " (uWSGI: in a postfork hook)",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Process;

    #[test]
    fn a_server_is_known_by_its_name_or_its_command() {
        for (process, cmdline, server) in [
            ("gunicorn", "", Server::Gunicorn),
            ("gunicorn: worker", "", Server::Gunicorn),
            ("python3", "/usr/bin/python3 -m gunicorn app:app", Server::Gunicorn),
            ("python3", "/usr/bin/python3 /srv/bin/uvicorn app:app", Server::Uvicorn),
            ("python3", "/usr/bin/python3 serve.py --like gunicorn", Server::Other),
            ("php-fpm8.2", "php-fpm: pool w", Server::PhpFpm),
            ("uwsgi", "", Server::Uwsgi),
            ("puma", "puma 5.6.5 (tcp://127.0.0.1:8207) [shop]", Server::Puma),
            ("nginx", "nginx: worker process", Server::Nginx),
            ("node", "node server.js", Server::Other),
        ] {
            let process =
                Process { process: process.into(), cmdline: cmdline.into(), ..Process::default() };
            let evidence = Evidence { process: Some(process), ..Evidence::default() };
            assert_eq!(Server::of(&evidence), server, "{cmdline}");
        }
    }
}
