//! The primary server dies under load and its synchronous standby takes over (FI-4): it has
//! everything that was acknowledged.

use std::time::Duration;

use crate::skip;
use crate::support::campaign::{Kind, Load, Table};
use crate::support::fleet::Fleet;
use crate::support::grants::{Route, grant};
use crate::support::seed::Seed;
use crate::support::standby::{Pair, SYNCHRONOUS};
use crate::support::{Stage, at_once, long};

const LEASE: &str = "lease = \"500ms\"";
const SEND: &str = "500ms";

fn install_manual(stage: &Stage) {
    let route = Route::manual(stage.provider.port(), "/any/**");
    stage.install_probe("manual", &grant(&format!("[limits]\nsend = \"{SEND}\""), &[route]));
}

#[test]
fn fi_4_a_synchronous_standby_promoted_under_load_has_all_that_was_acknowledged_and_nothing_is_made_twice() {
    let seed = Seed::of_this_run("synchronous failover");
    // Most of a round is waiting for leases, so that several pairs take turns with the processors.
    let tables = at_once(3, |part| {
        let mut total = Table::default();
        let mut pair = Pair::start(SYNCHRONOUS)?;
        for round in (part..long(10, 200)).step_by(3) {
            let mut order = seed.part(round as u64);
            let database = pair.primary.database();
            let fleet = Fleet::over(2, pair.url(&database), LEASE, SEND);
            install_manual(&fleet.stage);
            let kinds = &[Kind::Refund, Kind::Manual];
            let load =
                Load { stage: &fleet.stage, hosts: fleet.hosts(), kinds, callers: 4, seed: order.clone() };
            let items = load.during(|| {
                std::thread::sleep(Duration::from_millis(300 + order.below(900) as u64));
                pair.fail_over();
                std::thread::sleep(Duration::from_millis(300));
            });
            // What was open may wait for a person now; what could be repeated was.
            let mut table = load.judge(&items, &[], |_| true);
            table.kills = 1;
            total.add(table);
            fleet.hosts().iter().for_each(|host| host.kill());
            // A copy of it would only make the next standby slower.
            pair.standby.sql("postgres", &format!("drop database {database} with (force)"));
            pair = pair.pair_again()?;
        }
        Some(total)
    });
    let mut total = Table::default();
    for table in tables {
        let Some(table) = table else { skip!("it needs a PostgreSQL server") };
        total.add(table);
    }
    let total = total.hold("synchronous failover", &seed, Duration::from_secs(1));
    assert!(total.actions > 3 * total.kills, "a run without load shows nothing: {total}");
}
