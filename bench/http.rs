//! One caller's connection to the host: HTTP/1.1, kept open, one request after
//! another.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// A connection with its caller's token.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    token: String,
}

impl Connection {
    /// Opens one.
    pub async fn open(address: &str, token: &str) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection { sender, host: address.to_owned(), token: format!("Bearer {token}") })
    }

    /// Posts JSON and demands this status.
    pub async fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
        status: u16,
    ) -> anyhow::Result<Value> {
        let mut request = Request::post(path).header("Host", &self.host).header("Authorization", &self.token);
        if !body.is_empty() {
            request = request.header("Content-Type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let found = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(found == status, "{path}: {found}, {}", String::from_utf8_lossy(&bytes));
        Ok(serde_json::from_slice(&bytes)?)
    }
}
