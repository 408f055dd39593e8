//! What stands below the options in each `--help`: how it is called.

pub(crate) const ALL: &str = "Where to begin:
  sudo underspan doctor                   what can be seen here
  sudo underspan run -- gunicorn app:app  watch a service from its start
  sudo underspan up                       watch all that runs
  underspan requests                      which requests were slow
  underspan explain 00f1a2b3c4d5e6f7      why one of them was
  underspan flame -o out.svg              where threads ran and waited";

pub(crate) const UP: &str = "Examples:
  sudo underspan up                             all processes
  sudo underspan up --comm 'gunicorn*'          only some
  sudo underspan up --store http://ch:8123/apm  to a ClickHouse server";

pub(crate) const RUN: &str = "Examples:
  sudo underspan run -- gunicorn app:app
  sudo underspan run --data /tmp/trial -- ./service --port 8000";

pub(crate) const AGENT: &str = "Examples:
  sudo underspan agent --store http://ch:8123/apm
  sudo underspan agent --cgroup system.slice/shop.service --metrics 127.0.0.1:9464";

pub(crate) const SERVER: &str = "Examples:
  underspan server
  underspan server --store http://ch:8123/apm --api 0.0.0.0:7077";

pub(crate) const REQUESTS: &str = "Examples:
  underspan requests --since 15m --min 250ms
  underspan requests --path /export -n 50
  underspan requests --open                 what hangs now";

pub(crate) const EXPLAIN: &str = "Examples:
  underspan explain 00f1a2b3c4d5e6f7
  underspan explain 4bf92f3577b34da6a3ce929d0e0e4736   the slowest request of a trace";

pub(crate) const FLAME: &str = "Examples:
  underspan flame -o out.svg                            the last hour, running and waiting
  underspan flame --kind lock --last 15m -o lock.svg    who waited for locks, and where
  underspan flame --route 'GET /export' -o export.svg   while threads served a route
  underspan flame --slow p95 --vs fast p50 -o slow.svg  what slow requests do more of
  underspan flame --before 40m..20m --after 20m.. -o fix.svg
  underspan flame --kind cpu -o cpu.pb.gz               for `go tool pprof`";

pub(crate) const DIFF: &str = "Examples:
  underspan diff --before 40m..20m --after 20m..
  underspan diff --before 12:00..12:10 --after 12:30..12:40 --route 'GET /export'";

pub(crate) const TOP: &str = "Examples:
  sudo underspan top
  sudo underspan top --comm gunicorn
  sudo underspan top --once --json            for scripts";

pub(crate) const NETSTACK: &str = "Examples:
  sudo underspan netstack
  sudo underspan netstack -i eth0 --by interface
  sudo underspan netstack --pid 4711 --min-queue 10";

pub(crate) const SQL: &str = "Examples:
  underspan sql 'SHOW TABLES'
  underspan sql 'SELECT path, quantile(0.99)(duration_ns) / 1e6 FROM requests GROUP BY path'
  underspan sql --format CSVWithNames - < query.sql";

pub(crate) const DOCTOR: &str = "Examples:
  sudo underspan doctor
  sudo underspan doctor --comm gunicorn     also what can be seen of these processes";
