//! Recorded files are read; damaged ones are refused, whatever the damage.

use proptest::prelude::*;

use super::*;
use crate::tests::support::cases;

/// Linux 6.18, two CPUs of which one was offline.
const SOFTNET: &str = "\
003b6ca7 00000002 00000004 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
ffffffff 00000000 00000006 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000002 00000000 00000000
";
const PRESSURE: &str = "\
some avg10=0.09 avg60=0.64 avg300=1.73 total=6758479058
full avg10=0.00 avg60=0.00 avg300=0.00 total=17
";
const STAT: &str = "\
cpu  1615385 103948 552348 2492446 15048 0 8594 3139 0 0
cpu0 789748 50031 266828 1279796 4175 0 3036 1582 0 0
cpu3 825637 53917 285520 1212649 10873 0 5557 1557 0 0
intr 1 2 3
ctxt 99
";
const DEV: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 3688231290 7634568    0    0    0     0          0         0 3688231290 7634568    0    0    0     0       0          0
eth0:5022258119  162498    1    2    3     4          5         6 10765744  108029    7    8    9    10      11         12
";
const NETSTAT: &str = "\
TcpExt: SyncookiesSent SyncookiesRecv ListenOverflows ListenDrops TW
TcpExt: 0 0 12 15 99
IpExt: InNoRoutes InTruncatedPkts
IpExt: 0 0
";
const V1: &str = "nr_periods 20\nnr_throttled 9\nthrottled_time 812345678\n";
const V2: &str = "usage_usec 5\nuser_usec 3\nsystem_usec 2\nnr_periods 20\nnr_throttled 9\nthrottled_usec 812345\nnr_bursts 0\nburst_usec 0\n";

#[test]
fn recorded_files_are_read() {
    let [first, second] = softnet(SOFTNET).unwrap()[..] else { panic!("two CPUs") };
    assert_eq!(first, Softnet { cpu: 0, processed: 0x3b_6ca7, dropped: 2, squeezed: 4 });
    assert_eq!(second, Softnet { cpu: 2, processed: u32::MAX, dropped: 0, squeezed: 6 });

    let both = Pressure { some: Some(6_758_479_058), full: Some(17) };
    assert_eq!(pressure(PRESSURE).unwrap(), both);
    let irq = pressure("full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n").unwrap();
    assert_eq!(irq, Pressure { some: None, full: Some(7) });

    assert_eq!(steal(STAT).unwrap(), [(0, 1582), (3, 1557)]);

    let eth0 = &interfaces(DEV).unwrap()[1];
    assert_eq!((eth0.name.as_str(), eth0.receive_errs, eth0.receive_drop), ("eth0", 1, 2));
    assert_eq!((eth0.receive_fifo, eth0.transmit_errs, eth0.transmit_drop), (3, 7, 8));

    assert_eq!(listen(NETSTAT).unwrap(), Listen { overflows: 12, drops: 15 });

    let expected = Quota { periods: 20, throttled_periods: 9, throttled_ns: 812_345_678 };
    assert_eq!(quota(V1).unwrap(), Some(expected));
    assert_eq!(quota(V2).unwrap(), Some(Quota { throttled_ns: 812_345_000, ..expected }));
    // v2 without the controller.
    assert_eq!(quota("usage_usec 5\nuser_usec 3\nsystem_usec 2\n").unwrap(), None);
}

#[test]
fn kernels_before_5_10_do_not_number_the_cpus_of_softnet() {
    let old = "1 2 3 0 0 0 0 0 0 0 0\n4 5 6 0 0 0 0 0 0 0 0\n";
    let cpus: Vec<_> = softnet(old).unwrap().iter().map(|cpu| (cpu.cpu, cpu.dropped)).collect();
    assert_eq!(cpus, [(0, 2), (1, 5)]);
}

#[test]
fn damage_is_told_with_its_place() {
    let error = softnet("1 2 3\n").unwrap_err().to_string();
    assert_eq!(error, "softnet_stat, line 1: less than nine columns");
    let error = interfaces(&DEV.replace("5022258119", "lots")).unwrap_err().to_string();
    assert_eq!(error, "net/dev, line 4: not sixteen numbers");
    let error = quota("nr_periods 1\nnr_throttled 2\n").unwrap_err().to_string();
    assert_eq!(error, "cpu.stat, line 0: the quota's counters are incomplete");
    assert!(quota("throttled_usec 18446744073709551615\n").is_err(), "more ns than there are");
    assert!(pressure("some avg10=0.09\n").is_err());
    assert!(steal("cpu0 1 2 3\n").is_err());
    assert!(listen("TcpExt: ListenOverflows ListenDrops\nTcpExt: 1\n").is_err());
    for read in [softnet("").err(), pressure("").err(), steal("").err(), interfaces("").err()] {
        assert!(read.is_some(), "an empty file");
    }
    assert!(listen("").is_err());
}

/// A file with some of its bytes overwritten, or its end cut off.
fn damaged_file() -> impl Strategy<Value = String> {
    let files = [SOFTNET, PRESSURE, STAT, DEV, NETSTAT, V1, V2];
    let byte = prop_oneof![Just(b' '), Just(b'\n'), Just(b'-'), Just(b'0'), Just(b'9'), Just(b'x')];
    (0..files.len(), proptest::collection::vec((any::<u16>(), byte), 0..6), any::<u16>()).prop_map(
        move |(file, overwrites, cut)| {
            let mut bytes = files[file].as_bytes().to_vec();
            let len = bytes.len();
            for (at, byte) in overwrites {
                bytes[at as usize % len] = byte;
            }
            bytes.truncate(usize::from(cut) % (2 * len));
            String::from_utf8(bytes).unwrap()
        },
    )
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn no_damage_makes_a_parser_panic(text in prop_oneof![damaged_file(), any::<String>()]) {
        let _ = (softnet(&text), pressure(&text), steal(&text), interfaces(&text), listen(&text));
        let _ = quota(&text);
    }

    #[test]
    fn a_file_that_ends_too_soon_never_gives_a_quota_of_its_own(cut in 0..V1.len() - 1) {
        // Digits of the last number may be missing: the kernel hands such files out whole.
        let before_last_number = V1.rfind(' ').unwrap() + 1;
        prop_assume!(cut <= before_last_number);
        prop_assert!(!matches!(quota(&V1[..cut]), Ok(Some(_))));
    }

    #[test]
    fn numbers_come_back_as_they_were_written(drops: u64, errs: u64, steals: [u32; 3], hex: u32) {
        let dev = format!("Inter-|\n face |\n a:b: 1 2 {errs} {drops} 5 6 7 8 9 10 {errs} {drops} 13 14 15 16\n");
        let found = interfaces(&dev).unwrap().remove(0);
        prop_assert_eq!((found.name.as_str(), found.receive_drop, found.transmit_errs), ("a:b", drops, errs));
        let stat: String = steals.iter().enumerate()
            .map(|(cpu, ticks)| format!("cpu{cpu} 1 2 3 4 5 6 7 {ticks} 0 0\n")).collect();
        let ticks: Vec<_> = steal(&stat).unwrap().iter().map(|(_, ticks)| *ticks as u32).collect();
        prop_assert_eq!(ticks, steals);
        let line = format!("{hex:08x} {hex:08x} {hex:08x} 0 0 0 0 0 0\n");
        prop_assert_eq!(softnet(&line).unwrap()[0].squeezed, hex);
    }
}
