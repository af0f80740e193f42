//! A provider that answers at once and keeps nothing: what is measured is the
//! host, not its provider.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// A running one.
pub struct Upstream {
    /// On loopback.
    pub port: u16,
}

impl Upstream {
    /// For the tool's arguments.
    pub fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Starts one, in this process.
pub async fn start() -> anyhow::Result<Upstream> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
        }
    });
    Ok(Upstream { port })
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    request.into_body().collect().await?;
    let body = r#"{"id":"re_1","object":"refund","amount":100,"currency":"eur","payment_intent":"pi_1","status":"succeeded"}"#;
    Ok(Response::builder()
        .header("Content-Type", "application/json")
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .unwrap_or_default())
}
