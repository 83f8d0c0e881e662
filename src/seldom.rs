//! What may happen a thousand times in a second is said once in a while, with how often it was not.

use std::time::Duration;

use tokio::time::Instant;

/// At most one line in this time.
const EVERY: Duration = Duration::from_secs(10);

/// When something was said last.
#[derive(Debug, Default)]
pub struct Seldom {
    at: Option<Instant>,
    unsaid: u64,
}

impl Seldom {
    /// Nothing was said yet.
    pub const fn new() -> Self {
        Self { at: None, unsaid: 0 }
    }

    /// How often it was not said since it last was. `None`: nor is it now.
    pub fn is_due(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.at.is_some_and(|at| now.duration_since(at) < EVERY) {
            self.unsaid += 1;
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn said_once_in_a_while_with_how_often_it_was_not() {
        let mut seldom = Seldom::new();
        assert_eq!(seldom.is_due(), Some(0));
        assert_eq!((seldom.is_due(), seldom.is_due()), (None, None));
        tokio::time::advance(EVERY).await;
        assert_eq!((seldom.is_due(), seldom.is_due()), (Some(2), None));
        tokio::time::advance(EVERY).await;
        assert_eq!(seldom.is_due(), Some(1));
    }
}
