//! Everything that a component can import, by name. What is not here does not
//! link, and [`why_not`] says so at install before anything is compiled.

use wasmtime::Engine;
use wasmtime::component::{HasData, HasSelf, Linker, Resource, ResourceTable};
use wasmtime_wasi::filesystem::WasiFilesystem;
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem, io, random, sockets};
use wasmtime_wasi::sockets::WasiSockets;
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::{RequestOptions, WasiHttp, WasiHttpView};

use crate::bindings::tool::countersign::tool::{context, email};
use crate::http;
use crate::state::State;
use crate::surroundings::NoNetwork;

/// The interfaces of WASI 0.2 that link, in any patch version: components from
/// real toolchains mix them.
const WASI: &[&str] = &[
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:http/outgoing-handler",
    "wasi:http/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
    "wasi:sockets/instance-network",
    "wasi:sockets/ip-name-lookup",
    "wasi:sockets/network",
    "wasi:sockets/tcp",
    "wasi:sockets/tcp-create-socket",
    "wasi:sockets/udp",
    "wasi:sockets/udp-create-socket",
];

/// Our own interfaces that link.
const OWN: &[&str] =
    &["countersign:tool/context@0.1.0", "countersign:tool/email@0.1.0", "countersign:tool/tool@0.1.0"];

/// Why an import does not link, or `None` if it does.
pub(crate) fn why_not(import: &str) -> Option<String> {
    if OWN.contains(&import) {
        return None;
    }
    let (interface, version) = import.split_once('@').unwrap_or((import, ""));
    if WASI.contains(&interface) {
        if is_wasi_0_2(version) {
            return None;
        }
        return Some(format!("tools run on WASI 0.2; this is version `{version}`"));
    }
    Some(match interface {
        _ if interface.starts_with("countersign:tool/") => {
            "the host knows this package only in version 0.1.0, and not this interface".to_owned()
        }
        _ => "a tool cannot import this; what it can is WASI 0.2 (http, io, clocks, random, cli, filesystem, sockets) \
              and countersign:tool/{context, email}"
            .to_owned(),
    })
}

/// `0.2.N`, without a suffix.
fn is_wasi_0_2(version: &str) -> bool {
    version.strip_prefix("0.2.").is_some_and(|patch| {
        !patch.is_empty() && patch.len() <= 5 && patch.bytes().all(|b| b.is_ascii_digit())
    })
}

/// The resource table, for what wasmtime-wasi implements on it.
struct Table;

impl HasData for Table {
    type Data<'a> = &'a mut ResourceTable;
}

pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    let l = &mut linker;
    type Own = HasSelf<State>;

    // Ours: everything that a component can use.
    context::add_to_linker::<State, Own>(l, |s| s)?;
    email::add_to_linker::<State, Own>(l, |s| s)?;
    io::poll::add_to_linker::<State, Own>(l, |s| s)?;
    clocks::wall_clock::add_to_linker::<State, Own>(l, |s| s)?;
    clocks::monotonic_clock::add_to_linker::<State, Own>(l, |s| s)?;
    random::random::add_to_linker::<State, Own>(l, |s| s)?;
    random::insecure::add_to_linker::<State, Own>(l, |s| s)?;
    random::insecure_seed::add_to_linker::<State, Own>(l, |s| s)?;
    cli::environment::add_to_linker::<State, Own>(l, |s| s)?;
    cli::exit::add_to_linker::<State, Own>(l, |s| s)?;
    cli::stdin::add_to_linker::<State, Own>(l, |s| s)?;
    cli::stdout::add_to_linker::<State, Own>(l, |s| s)?;
    cli::stderr::add_to_linker::<State, Own>(l, |s| s)?;
    cli::terminal_input::add_to_linker::<State, Own>(l, |s| s)?;
    cli::terminal_output::add_to_linker::<State, Own>(l, |s| s)?;
    cli::terminal_stdin::add_to_linker::<State, Own>(l, |s| s)?;
    cli::terminal_stdout::add_to_linker::<State, Own>(l, |s| s)?;
    cli::terminal_stderr::add_to_linker::<State, Own>(l, |s| s)?;
    filesystem::preopens::add_to_linker::<State, Own>(l, |s| s)?;
    l.instance("wasi:http/outgoing-handler@0.2.12")?.func_wrap(
        "handle",
        |mut store: wasmtime::StoreContextMut<'_, State>,
         (request, options): (Resource<HostOutgoingRequest>, Option<Resource<RequestOptions>>)| {
            let future: Result<Resource<HostFutureIncomingResponse>, _> =
                http::handle(store.data_mut(), request, options)?;
            Ok((future,))
        },
    )?;

    // The crates': header lists, bodies and streams, which reach nothing.
    wasmtime_wasi_http::p2::bindings::http::types::add_to_linker::<State, WasiHttp>(
        l,
        &wasmtime_wasi_http::p2::bindings::LinkOptions::default().into(),
        State::http,
    )?;
    io::error::add_to_linker::<State, Table>(l, |s| &mut s.table)?;
    io::streams::add_to_linker::<State, Table>(l, |s| &mut s.table)?;

    // Named, and without a way in: files need a preopened folder, sockets one of
    // the four functions of `NoNetwork`.
    filesystem::types::add_to_linker::<State, WasiFilesystem>(l, State::files)?;
    sockets::instance_network::add_to_linker::<State, NoNetwork>(l, |_| NoNetwork)?;
    sockets::ip_name_lookup::add_to_linker::<State, NoNetwork>(l, |_| NoNetwork)?;
    sockets::tcp_create_socket::add_to_linker::<State, NoNetwork>(l, |_| NoNetwork)?;
    sockets::udp_create_socket::add_to_linker::<State, NoNetwork>(l, |_| NoNetwork)?;
    let mut network = sockets::network::LinkOptions::default();
    network.network_error_code(true);
    sockets::network::add_to_linker::<State, NoNetwork>(l, &network, |_| NoNetwork)?;
    sockets::tcp::add_to_linker::<State, WasiSockets>(l, State::sockets)?;
    sockets::udp::add_to_linker::<State, WasiSockets>(l, State::sockets)?;
    Ok(linker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a17_an_import_links_only_by_its_full_name() {
        for good in ["wasi:http/types@0.2.2", "wasi:io/poll@0.2.12", "countersign:tool/email@0.1.0"] {
            assert_eq!(why_not(good), None, "{good}");
        }
        for bad in [
            "wasi:http/types",
            "wasi:http/types@0.3.0",
            "wasi:http/types@0.2.0-rc-2023-12-05",
            "wasi:http/incoming-handler@0.2.12",
            "wasi:keyvalue/store@0.2.0",
            "wasi_snapshot_preview1",
            "countersign:tool/context@0.2.0",
            "countersign:tool/email@0.2.0",
            "",
        ] {
            assert!(why_not(bad).is_some(), "{bad}");
        }
    }
}
