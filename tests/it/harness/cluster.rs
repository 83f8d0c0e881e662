//! A Redis cluster: three primaries, and a replica of the first.

use super::certs::Issued;
use super::redis::{ACCOUNT, Redis};
use super::{free_port, wait_until};

/// Runs until dropped.
pub(crate) struct Cluster {
    /// Three primaries, then the replica.
    pub(crate) servers: Vec<Redis>,
}

const SLOTS: usize = 16_384;

impl Cluster {
    /// Every slot is served.
    pub(crate) fn start() -> Self {
        Self::start_over(None, &[])
    }

    /// With more command line arguments. All servers speak TLS with each other and with us, if
    /// there are certificates.
    pub(crate) fn start_over(issued: Option<&Issued>, args: &[&str]) -> Self {
        let servers: Vec<(Redis, u16)> = (0..4).map(|_| server(issued, args)).collect();
        for (index, (server, _)) in servers.iter().take(3).enumerate() {
            let (first, last) = (index * SLOTS / 3, (index + 1) * SLOTS / 3 - 1);
            server.command::<()>(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            server.command::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        }
        for (other, bus_port) in &servers[1..] {
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus_port}", other.door());
            servers[0].0.command::<()>(&meet);
        }
        let servers: Vec<Redis> = servers.into_iter().map(|(server, _)| server).collect();
        let cluster = Self { servers };
        wait_until("the servers know each other", || {
            cluster.servers.iter().all(|server| cluster.nodes_known_by(server) == 4)
        });
        let replicate = format!("CLUSTER REPLICATE {}", cluster.id(0));
        wait_until("the replica has its primary", || {
            cluster.servers[3].try_command::<()>(&replicate).is_ok()
        });
        wait_until("every slot is served, and the replica follows", || {
            cluster
                .servers
                .iter()
                .all(|server| server.command::<String>("CLUSTER INFO").contains("cluster_state:ok"))
                && cluster.servers[3].info("master_link_status") == "up"
        });
        cluster
    }

    /// What goes into `store.redis.nodes`.
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("127.0.0.1:{}", server.door())).collect()
    }

    /// Who a server is, to the others.
    pub(crate) fn id(&self, index: usize) -> String {
        self.servers[index].command("CLUSTER MYID")
    }

    /// Which of the first three has a slot, as the first live server sees it.
    pub(crate) fn owner(&self, slot: usize) -> usize {
        slot * 3 / SLOTS
    }

    /// Begins to move a slot: keys that are there stay, new ones go to the other server.
    pub(crate) fn begin_move(&self, slot: usize, from: usize, to: usize) {
        let (source, target) = (self.id(from), self.id(to));
        self.servers[to].command::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
        self.servers[from].command::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
    }

    /// Moves the keys of a slot.
    pub(crate) fn move_keys(&self, slot: usize, from: usize, to: usize) {
        let (source, port) = (&self.servers[from], self.servers[to].door());
        let keys: Vec<String> = source.command(&format!("CLUSTER GETKEYSINSLOT {slot} 1000"));
        for key in keys {
            let account = format!("AUTH2 {ACCOUNT} {ACCOUNT}");
            source.command::<()>(&format!("MIGRATE 127.0.0.1 {port} {key} 0 5000 {account}"));
        }
    }

    /// Says that the move is over, to both and then to the rest.
    pub(crate) fn end_move(&self, slot: usize, from: usize, to: usize) {
        let words = format!("CLUSTER SETSLOT {slot} NODE {}", self.id(to));
        self.servers[to].command::<()>(&words);
        self.servers[from].command::<()>(&words);
        for other in (0..3).filter(|other| ![from, to].contains(other)) {
            self.servers[other].command::<()>(&words);
        }
    }

    fn nodes_known_by(&self, server: &Redis) -> usize {
        let nodes: String = server.command("CLUSTER NODES");
        nodes.lines().filter(|line| !line.contains("handshake")).count()
    }
}

/// One that has no slots yet, and the port of its bus.
fn server(issued: Option<&Issued>, args: &[&str]) -> (Redis, u16) {
    let bus_port = free_port();
    let own = format!(
        "--cluster-enabled yes --cluster-config-file nodes.conf --cluster-node-timeout 800 --cluster-port {bus_port}"
    );
    let args: Vec<&str> = own.split(' ').chain(args.iter().copied()).collect();
    (Redis::start_over(issued, &args), bus_port)
}
