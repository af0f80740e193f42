//! Several hosts over one ledger on a PostgreSQL server, with one provider.

use super::host::Host;
use super::postgres::Cluster;
use super::stage::Stage;
use super::told::Told;

/// The stage whose host is the first, and the others.
pub struct Fleet {
    /// Provider, first host, and the verbs.
    pub stage: Stage,
    /// The other hosts.
    pub others: Vec<Host>,
}

impl Fleet {
    /// So many hosts over a new database of this server, all running.
    pub fn of(size: usize, cluster: &Cluster, toml: &str, send: &str) -> Fleet {
        Fleet::over(size, cluster.url(&cluster.database()), toml, send)
    }

    /// The same over an empty database that is there.
    pub fn over(size: usize, url: String, toml: &str, send: &str) -> Fleet {
        let stage = Stage::over(Some(url), toml, send);
        let others: Vec<Host> = (1..size).map(|_| stage.host.beside(toml)).collect();
        others.iter().for_each(Host::wake);
        Fleet { stage, others }
    }

    /// All of them.
    pub fn hosts(&self) -> Vec<&Host> {
        std::iter::once(&self.stage.host).chain(&self.others).collect()
    }

    /// The host of this number, counted round and round.
    pub fn host(&self, number: usize) -> &Host {
        match number % (self.others.len() + 1) {
            0 => &self.stage.host,
            n => &self.others[n - 1],
        }
    }
}

/// Executes on one of several hosts, which may be killed meanwhile, and waits for the result.
pub fn execute_on(host: &Host, id: &str) -> std::io::Result<Told> {
    let agent = host.agent();
    agent.try_send(agent.request("POST", &format!("/v1/actions/{id}/execute?wait=60s")))
}
