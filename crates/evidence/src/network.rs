//! What happened on the sockets that a request's thread waited on, at both of their ends, and in its
//! host.

use std::collections::BTreeSet;

use underspan_explain::INTERFERENCE;
use underspan_model::{
    HostCounter, PacketAges, Request, State, TcpAccept, TcpConnect, TcpListener, TcpLoss, Wait,
};
use underspan_store::Store;

use crate::Error;
use crate::query::{START, Select};
use crate::rows::{LONGEST_NS, ROWS, WAIT};

/// A connection is in the accept queue from its handshake on, so before its request came.
const HANDSHAKE_NS: u64 = 60_000_000_000;
/// Rows of listeners and counters are of about a second.
const SECOND_NS: u64 = 2_000_000_000;
/// Rows of listeners are of interest from so long before: a client that was dropped tries again within 3 s.
const DROPPED_NS: u64 = 3_000_000_000 + SECOND_NS;
/// Sockets of one request that are followed, those with the longest waits.
const SOCKETS: usize = 256;

/// Rows of any host: a connection has two ends.
#[derive(Default)]
pub(crate) struct Network {
    pub(crate) losses: Vec<TcpLoss>,
    pub(crate) connects: Vec<TcpConnect>,
    pub(crate) accepts: Vec<TcpAccept>,
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) peers: Vec<Request>,
    pub(crate) reader_waits: Vec<Wait>,
    pub(crate) counters: Vec<HostCounter>,
    pub(crate) packets: Vec<PacketAges>,
}

impl Network {
    /// Of a request whose thread's waits are these.
    pub(crate) async fn read(
        store: &Store,
        request: &Request,
        waits: &[Wait],
    ) -> Result<Network, Error> {
        let sockets = Sockets::of(request, waits);
        let asked = Asked { store, request, sockets };
        let (losses, connects, accepts, listeners, peers, counters, packets) = tokio::try_join!(
            asked.losses(),
            asked.connects(),
            asked.accepts(),
            asked.listeners(),
            asked.peers(),
            asked.counters(),
            asked.packets(),
        )?;
        let reader_waits = asked.reader_waits(&losses).await?;
        Ok(Network { losses, connects, accepts, listeners, peers, reader_waits, counters, packets })
    }
}

/// The ends of what the request's own thread waited on.
#[derive(Default)]
struct Sockets {
    locals: Vec<String>,
    peers: Vec<String>,
}

impl Sockets {
    fn of(request: &Request, waits: &[Wait]) -> Sockets {
        let mut own: Vec<_> = waits
            .iter()
            .filter(|w| w.tid == request.tid && !w.local.is_empty() && !w.peer.is_empty())
            .collect();
        own.sort_by_key(|w| std::cmp::Reverse(w.duration_ns));
        let ends: BTreeSet<_> = own.iter().take(SOCKETS).map(|w| (&w.local, &w.peer)).collect();
        Sockets {
            locals: ends.iter().map(|(local, _)| (*local).clone()).collect(),
            peers: ends.iter().map(|(_, peer)| (*peer).clone()).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }
}

struct Asked<'a> {
    store: &'a Store,
    request: &'a Request,
    sockets: Sockets,
}

/// For a table aliased `t`.
const DURING: &str = "t.start_time >= fromUnixTimestamp64Nano({from:Int64}) \
    AND t.start_time <= fromUnixTimestamp64Nano({end:Int64}) \
    AND toUnixTimestamp64Nano(t.start_time) + duration_ns >= {begin:Int64}";

impl Asked<'_> {
    /// A query whose text may use [`DURING`], of rows that last at most so long.
    fn select(&self, table: &'static str, sql: &str, longest: u64) -> Select<'_> {
        let begin = self.request.start_time;
        Select::new(self.store, table, sql)
            .param("host", &self.request.host)
            .param("pid", self.request.pid)
            .param("tid", self.request.tid)
            .time("from", begin.saturating_sub(longest))
            .time("begin", begin)
            .time("end", begin.saturating_add(self.request.duration_ns))
            .param("rows", ROWS)
    }

    /// Of a socket from this end or the other. `local` and `peer` have bloom filters.
    async fn losses(&self) -> Result<Vec<TcpLoss>, Error> {
        if self.sockets.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {START}, host, pid, tid, thread, process, duration_ns, local, peer, kind, \
                retransmits, backoff FROM tcp_loss AS t \
             WHERE {DURING} AND ((local, peer) IN (SELECT arrayJoin(arrayZip( \
                    {{locals:Array(String)}}, {{peers:Array(String)}}))) \
                OR (peer, local) IN (SELECT arrayJoin(arrayZip( \
                    {{locals:Array(String)}}, {{peers:Array(String)}})))) \
             LIMIT {{rows:UInt64}}"
        );
        self.of_sockets("tcp_loss", &sql, LONGEST_NS).rows().await
    }

    fn of_sockets(&self, table: &'static str, sql: &str, longest: u64) -> Select<'_> {
        self.select(table, sql, longest)
            .param("locals", &self.sockets.locals)
            .param("peers", &self.sockets.peers)
    }

    async fn connects(&self) -> Result<Vec<TcpConnect>, Error> {
        if self.request.ledger[State::NetConnect] == 0 {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {START}, host, pid, tid, duration_ns, local, peer, outcome, reconnect_ns, \
                syn_retransmits FROM tcp_connect AS t \
             WHERE host = {{host:String}} AND pid = {{pid:UInt32}} AND tid = {{tid:UInt32}} \
                AND {DURING} LIMIT {{rows:UInt64}}"
        );
        self.select("tcp_connect", &sql, LONGEST_NS).rows().await
    }

    /// Of the request's own connection, and of those that its thread waited to be taken.
    async fn accepts(&self) -> Result<Vec<TcpAccept>, Error> {
        let request = self.request;
        let mut locals = vec![request.peer.clone()];
        let mut peers = vec![request.local.clone()];
        locals.extend(self.sockets.locals.iter().cloned());
        peers.extend(self.sockets.peers.iter().cloned());
        let sql = format!(
            "SELECT {START}, host, pid, tid, duration_ns, local, peer, queue_length, queue_limit \
             FROM tcp_accept AS t \
             WHERE t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
                AND t.start_time <= fromUnixTimestamp64Nano({{end:Int64}}) \
                AND peer IN {{locals:Array(String)}} AND (peer, local) IN (SELECT arrayJoin(arrayZip( \
                    {{locals:Array(String)}}, {{peers:Array(String)}}))) LIMIT {{rows:UInt64}}"
        );
        self.select("tcp_accept", &sql, HANDSHAKE_NS)
            .param("locals", locals)
            .param("peers", peers)
            .rows()
            .await
    }

    /// At the request's own port and at those of its peers: one that listens everywhere has another
    /// address.
    async fn listeners(&self) -> Result<Vec<TcpListener>, Error> {
        let request = self.request;
        // A connection that did not have to wait may have been dropped before.
        let first = request.accept_queue_ns >= INTERFERENCE.ns || request.conn_request == 0;
        let own = first.then_some(&request.local);
        let ports = own.into_iter().chain(&self.sockets.peers);
        let ports: BTreeSet<_> = ports.filter_map(|address| port(address)).collect();
        if ports.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {START}, host, pid, tid, process, duration_ns, local, queue_length, queue_limit, \
                overflows FROM tcp_listener AS t \
             WHERE t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
                AND t.start_time <= fromUnixTimestamp64Nano({{end:Int64}}) \
                AND splitByChar(':', local)[-1] IN {{ports:Array(String)}} \
             LIMIT {{rows:UInt64}}"
        );
        let ports: Vec<_> = ports.into_iter().collect();
        self.select("tcp_listener", &sql, DROPPED_NS).param("ports", ports).rows().await
    }

    /// What the other ends served meanwhile.
    async fn peers(&self) -> Result<Vec<Request>, Error> {
        if self.sockets.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {} FROM requests AS t \
             WHERE {DURING} AND peer IN {{locals:Array(String)}} AND (peer, local) IN (SELECT arrayJoin(arrayZip( \
                {{locals:Array(String)}}, {{peers:Array(String)}}))) LIMIT {{rows:UInt64}}",
            crate::requests::columns()
        );
        self.of_sockets("requests", &sql, LONGEST_NS).rows().await
    }

    /// What the threads that did not read in time waited for.
    async fn reader_waits(&self, losses: &[TcpLoss]) -> Result<Vec<Wait>, Error> {
        let mut waits = Vec::new();
        let late = losses.iter().filter(|loss| loss.kind == "zero_window_local" && loss.tid != 0);
        let readers: BTreeSet<_> = late.map(|loss| (&loss.host, loss.pid, loss.tid)).collect();
        for (host, pid, tid) in readers.into_iter().take(SOCKETS) {
            let sql = format!(
                "SELECT {START}, {WAIT} FROM waits AS t \
                 WHERE host = {{reader:String}} AND pid = {{reader_pid:UInt32}} \
                    AND tid = {{reader_tid:UInt32}} AND {DURING} LIMIT {{rows:UInt64}}"
            );
            let select = self
                .select("waits", &sql, LONGEST_NS)
                .param("reader", host)
                .param("reader_pid", pid)
                .param("reader_tid", tid);
            waits.extend(select.rows::<Wait>().await?);
        }
        Ok(waits)
    }

    /// Counters that moved.
    async fn counters(&self) -> Result<Vec<HostCounter>, Error> {
        let sql = format!(
            "SELECT {START}, host, duration_ns, source, metric, subject, unit, delta \
             FROM throttle AS t \
             WHERE host = {{host:String}} AND pid = 0 AND {DURING} AND status = 'read' AND delta > 0 \
                AND duration_ns > 0 LIMIT {{rows:UInt64}}"
        );
        self.select("throttle", &sql, SECOND_NS).rows().await
    }

    async fn packets(&self) -> Result<Vec<PacketAges>, Error> {
        let sql = format!(
            "SELECT {START}, host, duration_ns, point, count, sum_ns FROM netstack AS t \
             WHERE host = {{host:String}} AND pid = 0 AND {DURING} LIMIT {{rows:UInt64}}"
        );
        self.select("netstack", &sql, SECOND_NS).rows().await
    }
}

fn port(address: &str) -> Option<&str> {
    address.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.is_empty())
}
