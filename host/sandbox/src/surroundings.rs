//! What standard libraries ask for at start, answered with nothing: no variable,
//! no argument, no folder, no input, no terminal, and a network that is not
//! there. All of it is ours, so that nothing has to be switched off in somebody
//! else's; only resources that nobody can get hold of are left to wasmtime-wasi.

use wasmtime::component::{HasData, Resource};
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::bindings::cli::{
    environment, exit, stderr, stdin, stdout, terminal_input, terminal_output, terminal_stderr,
    terminal_stdin, terminal_stdout,
};
use wasmtime_wasi::p2::bindings::filesystem::preopens;
use wasmtime_wasi::p2::bindings::io;
use wasmtime_wasi::p2::bindings::sockets::network::{self, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::tcp::TcpSocket;
use wasmtime_wasi::p2::bindings::sockets::udp::UdpSocket;
use wasmtime_wasi::p2::bindings::sockets::{
    instance_network, ip_name_lookup, tcp_create_socket, udp_create_socket,
};
use wasmtime_wasi::p2::pipe::ClosedInputStream;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, DynPollable, SocketError, SocketResult};

use crate::error::Halt;
use crate::output::Source;
use crate::state::State;

impl environment::Host for State {
    fn get_environment(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(Vec::new())
    }

    fn get_arguments(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn initial_cwd(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(None)
    }
}

impl exit::Host for State {
    fn exit(&mut self, status: Result<(), ()>) -> wasmtime::Result<()> {
        Err(Halt::Exited(u8::from(status.is_err())).into())
    }

    fn exit_with_code(&mut self, status: u8) -> wasmtime::Result<()> {
        Err(Halt::Exited(status).into())
    }
}

impl stdin::Host for State {
    fn get_stdin(&mut self) -> wasmtime::Result<Resource<DynInputStream>> {
        Ok(self.table.push(Box::new(ClosedInputStream) as DynInputStream)?)
    }
}

impl stdout::Host for State {
    fn get_stdout(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        Ok(self.table.push(self.output.stream(Source::Stdout))?)
    }
}

impl stderr::Host for State {
    fn get_stderr(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        Ok(self.table.push(self.output.stream(Source::Stderr))?)
    }
}

type TerminalInput = terminal_input::TerminalInput;
type TerminalOutput = terminal_output::TerminalOutput;

impl terminal_input::Host for State {}
impl terminal_input::HostTerminalInput for State {
    fn drop(&mut self, terminal: Resource<TerminalInput>) -> wasmtime::Result<()> {
        self.table.delete(terminal)?;
        Ok(())
    }
}

impl terminal_output::Host for State {}
impl terminal_output::HostTerminalOutput for State {
    fn drop(&mut self, terminal: Resource<TerminalOutput>) -> wasmtime::Result<()> {
        self.table.delete(terminal)?;
        Ok(())
    }
}

impl terminal_stdin::Host for State {
    fn get_terminal_stdin(&mut self) -> wasmtime::Result<Option<Resource<TerminalInput>>> {
        Ok(None)
    }
}

impl terminal_stdout::Host for State {
    fn get_terminal_stdout(&mut self) -> wasmtime::Result<Option<Resource<TerminalOutput>>> {
        Ok(None)
    }
}

impl terminal_stderr::Host for State {
    fn get_terminal_stderr(&mut self) -> wasmtime::Result<Option<Resource<TerminalOutput>>> {
        Ok(None)
    }
}

impl preopens::Host for State {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        Ok(Vec::new())
    }
}

/// The network that is not there. Some toolchains import sockets whether they are
/// used or not, so they link; the four ways to get hold of one end the run.
pub(crate) struct NoNetwork;

impl HasData for NoNetwork {
    type Data<'a> = NoNetwork;
}

const SOCKETS: Halt = Halt::NotGranted("wasi:sockets");

impl network::Host for NoNetwork {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<network::ErrorCode> {
        error.downcast()
    }

    fn network_error_code(
        &mut self,
        _: Resource<io::streams::Error>,
    ) -> wasmtime::Result<Option<network::ErrorCode>> {
        Ok(None)
    }
}

impl network::HostNetwork for NoNetwork {
    fn drop(&mut self, _: Resource<Network>) -> wasmtime::Result<()> {
        Err(SOCKETS.into())
    }
}

impl instance_network::Host for NoNetwork {
    fn instance_network(&mut self) -> wasmtime::Result<Resource<Network>> {
        Err(SOCKETS.into())
    }
}

impl tcp_create_socket::Host for NoNetwork {
    fn create_tcp_socket(&mut self, _: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        Err(SocketError::trap(SOCKETS))
    }
}

impl udp_create_socket::Host for NoNetwork {
    async fn create_udp_socket(&mut self, _: IpAddressFamily) -> SocketResult<Resource<UdpSocket>> {
        Err(SocketError::trap(SOCKETS))
    }
}

impl ip_name_lookup::Host for NoNetwork {
    fn resolve_addresses(
        &mut self,
        _: Resource<Network>,
        _: String,
    ) -> SocketResult<Resource<ip_name_lookup::ResolveAddressStream>> {
        Err(SocketError::trap(SOCKETS))
    }
}

impl ip_name_lookup::HostResolveAddressStream for NoNetwork {
    fn resolve_next_address(
        &mut self,
        _: Resource<ip_name_lookup::ResolveAddressStream>,
    ) -> SocketResult<Option<ip_name_lookup::IpAddress>> {
        Err(SocketError::trap(SOCKETS))
    }

    fn subscribe(
        &mut self,
        _: Resource<ip_name_lookup::ResolveAddressStream>,
    ) -> wasmtime::Result<Resource<DynPollable>> {
        Err(SOCKETS.into())
    }

    fn drop(&mut self, _: Resource<ip_name_lookup::ResolveAddressStream>) -> wasmtime::Result<()> {
        Err(SOCKETS.into())
    }
}
