//! The signature of a webhook, by the Standard Webhooks convention
//! (standardwebhooks.com): HMAC-SHA256 over id, time and body, so that a
//! receiver knows who sent it, that it is whole, and when.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// What goes into `webhook-signature`. `at`: seconds since 1970, as in
/// `webhook-timestamp`.
pub(super) fn signature(key: &[u8], id: &str, at: u64, body: &[u8]) -> Option<String> {
    // No key has a length that HMAC does not take; an unsigned message would be
    // worse than none.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(format!("{id}.{at}.").as_bytes());
    mac.update(body);
    Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_the_one_that_the_conventions_own_libraries_make() {
        // From the convention's reference implementations.
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("base64");
        let signed =
            signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }
}
