//! A network between us and Redis that the test breaks: slow, deaf, cut. It reads no
//! protocol, but counts what we say.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::io::tcp::socket2::SockRef;

/// What becomes of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// They pass.
    Fair,
    /// What Redis says comes this much later.
    Slow(Duration),
    /// Nothing arrives in either direction, until the weather is better: then all of it does, late,
    /// as after a partition.
    BlackHole,
    /// The request arrives, the reply vanishes, and so does every later one of that connection: a
    /// stream has no holes.
    Mute,
    /// The same, for the one connection that hears a reply next; for others it is fair.
    MuteOnce,
    /// The request arrives, and instead of the reply the connection is reset.
    Reset,
    /// The same, once; then it is fair.
    ResetOnce,
    /// Redis' side is closed for writing; what we say still arrives.
    HalfClosed,
    /// This many bytes of what Redis says pass; then the connection is reset.
    CutAfter(usize),
}

/// Passes connections on until dropped.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    weather: Mutex<Weather>,
    target: Mutex<u16>,
    open: Mutex<Vec<Weak<TcpStream>>>,
    closed: Mutex<bool>,
    traffic: Mutex<Traffic>,
}

/// What came from our side so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) connections: usize,
    pub(crate) bytes: usize,
    /// Runs of scripts.
    pub(crate) runs: usize,
}

impl Proxy {
    /// To a port of this machine.
    pub(crate) fn to(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            weather: Mutex::new(Weather::Fair),
            target: Mutex::new(target),
            open: Mutex::default(),
            closed: Mutex::new(false),
            traffic: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if *accepting.closed.lock().unwrap() {
                    return;
                }
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || shared.carry(client));
            }
        });
        Self { port, shared }
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// What goes into `store.redis.url`.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on, also for connections that are open.
    pub(crate) fn set(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap() = weather;
    }

    /// What we have said to Redis so far, whether or not it arrived.
    pub(crate) fn traffic(&self) -> Traffic {
        *self.shared.traffic.lock().unwrap()
    }

    /// New connections go to another server; open ones stay where they are.
    pub(crate) fn point_at(&self, target: u16) {
        *self.shared.target.lock().unwrap() = target;
    }
}

impl Traffic {
    fn count(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.runs += bytes.windows(7).filter(|bytes| *bytes == b"EVALSHA").count();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        *self.shared.closed.lock().unwrap() = true;
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _ = stream.upgrade().map(|stream| stream.shutdown(Shutdown::Both));
        }
        // Wakes the one who accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    fn carry(&self, client: TcpStream) {
        self.traffic.lock().unwrap().connections += 1;
        let target = *self.target.lock().unwrap();
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else { return };
        let ends = [Arc::new(client), Arc::new(server)];
        for stream in &ends {
            let _ = stream.set_nodelay(true);
            self.open.lock().unwrap().push(Arc::downgrade(stream));
        }
        let [client, server] = &ends;
        std::thread::scope(|scope| {
            scope.spawn(|| self.requests(client, server));
            self.replies(server, client);
        });
    }

    fn requests(&self, mut client: &TcpStream, mut server: &TcpStream) {
        let mut bytes = [0; 16 * 1024];
        while let Ok(length @ 1..) = client.read(&mut bytes) {
            self.traffic.lock().unwrap().count(&bytes[..length]);
            self.wait_out_the_black_hole();
            if server.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Both);
    }

    fn wait_out_the_black_hole(&self) {
        while *self.weather.lock().unwrap() == Weather::BlackHole && !*self.closed.lock().unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn replies(&self, mut server: &TcpStream, mut client: &TcpStream) {
        let mut bytes = [0; 16 * 1024];
        let mut is_mute = false;
        while let Ok(length @ 1..) = server.read(&mut bytes) {
            self.wait_out_the_black_hole();
            let weather = *self.weather.lock().unwrap();
            is_mute |= weather == Weather::Mute;
            let passing = match weather {
                _ if is_mute => 0,
                Weather::Fair => length,
                Weather::Slow(late) => {
                    std::thread::sleep(late);
                    length
                }
                // It became one a moment ago.
                Weather::BlackHole | Weather::Mute => {
                    is_mute = true;
                    0
                }
                Weather::MuteOnce => {
                    *self.weather.lock().unwrap() = Weather::Fair;
                    is_mute = true;
                    0
                }
                Weather::Reset => return reset(client),
                Weather::ResetOnce => {
                    *self.weather.lock().unwrap() = Weather::Fair;
                    return reset(client);
                }
                Weather::HalfClosed => {
                    is_mute = true;
                    let _ = client.shutdown(Shutdown::Write);
                    0
                }
                Weather::CutAfter(most) => length.min(most),
            };
            if client.write_all(&bytes[..passing]).is_err() {
                break;
            }
            if matches!(weather, Weather::CutAfter(_)) {
                return reset(client);
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    }
}

/// Closed without lingering, a socket sends a RST. Closing for reading wakes the other thread, so
/// that both let go of it.
fn reset(client: &TcpStream) {
    let _ = SockRef::from(client).set_linger(Some(Duration::ZERO));
    let _ = client.shutdown(Shutdown::Read);
}
